"""How exactly the GPU multiplies while an attack runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["float32", "tf32", "bf16"]


@contextmanager
def computing_in(precision: Precision) -> Iterator[None]:
    """float32 means float32: TF32 only where it is asked for.

    cuDNN tries its algorithms and keeps the fastest; by its own guess a step of ResNet-18 took 134
    ms on an H200, after the search (and with another unfolding) 84.
    """
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    matmul.allow_tf32 = cudnn.allow_tf32 = precision == "tf32"
    cudnn.benchmark = True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
