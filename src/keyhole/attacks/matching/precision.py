"""The precision in which the GPU multiplies while an attack runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bf16"]


@contextmanager
def use_precision(precision: Precision) -> Iterator[None]:
    """Sets the precision inside the block: TF32 is used only if it was asked for.

    cuDNN tries its algorithms and keeps the fastest. With cuDNN's own guess a step of ResNet-18
    took 134 ms on an H200; after the search (and with another unfolding) it took 84 ms.

    Args:
        precision: ``float32``, ``tf32`` or ``bf16``.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
