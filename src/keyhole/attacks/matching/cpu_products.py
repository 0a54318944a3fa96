"""Which library multiplies float32 matrices on a CPU.

PyTorch multiplies by MKL, which on processors that are not Intel's runs at a fraction of their
speed: on an AMD EPYC (Zen 5) one thread does 21-25 GFLOP/s by MKL and 50-60 by oneDNN, which the
same PyTorch holds for convolutions. PyTorch hands float32 products to oneDNN where it may round
their inputs to bfloat16. A processor without bfloat16 tiles gains nothing from rounding, and oneDNN
computes in float32 all the same; whether it does is checked before it is relied on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch

MKL: Any = torch.backends.mkl
MKLDNN: Any = torch.backends.mkldnn
"""oneDNN, by its old name."""
TOLERANCE = 3e-6
"""Relative error up to which a product counts as one in float32; bfloat16 errs by 2e-3."""
SHAPES = ((1, 2048, 64), (64, 300, 12), (65, 256, 256), (256, 64, 512), (96, 768, 32))
"""Rows, inner size and columns of the products by which that is checked."""
CPU_FACTS = Path("/proc/cpuinfo")


@contextmanager
def multiply_fast() -> Iterator[None]:
    """Inside the block a CPU multiplies float32 matrices by the faster library.

    The results are those of float32 in either case.
    """
    matmul = MKLDNN.matmul
    if matmul.fp32_precision == "bf16" or not onednn_is_faster():
        yield
        return
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before


@cache
def onednn_is_faster() -> bool:
    """Returns whether oneDNN is the faster library here, and multiplies in float32.

    No clock has a say: equal machines give equal results.
    """
    if not MKLDNN.is_available() or not MKL.is_available():
        return False
    return is_amd() and not torch.cpu._is_amx_tile_supported() and onednn_is_exact()


def is_amd() -> bool:
    """Returns whether the processor is AMD's; False where the system does not say."""
    try:
        return "AuthenticAMD" in CPU_FACTS.read_text(encoding="utf-8")
    except OSError:
        return False


def onednn_is_exact() -> bool:
    """Returns whether products that may be rounded to bfloat16 are those of float32 still."""
    matmul = MKLDNN.matmul
    before = matmul.fp32_precision
    draw = torch.Generator().manual_seed(0)
    matmul.fp32_precision = "bf16"
    try:
        for rows, inner, columns in SHAPES:
            left = torch.randn(3, rows, inner, generator=draw)
            right = torch.randn(3, inner, columns, generator=draw)
            for one, other in ((left, right), (left[0], right[0])):
                exact = one.double() @ other.double()
                if (one @ other - exact).norm() > TOLERANCE * exact.norm():
                    return False
    finally:
        matmul.fp32_precision = before
    return True
