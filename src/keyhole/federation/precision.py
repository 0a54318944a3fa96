"""The precision in which clients train: float32, TF32 or bfloat16.

Weights, gradients' sums and the optimiser stay in float32. In ``bf16`` convolutions and matrix
products take and give bfloat16; in ``tf32`` a GPU rounds their inputs to 10 bits of mantissa.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from keyhole.errors import DoesNotFit
from keyhole.settings import AskedPrecision, Precision

LARGE_MODEL = 1_000_000
"""Parameters from which bfloat16 pays: smaller models wait for launches, and a cast is one more."""
AMPERE = (8, 0)
"""The first compute capability with bfloat16 and TF32."""


def choose_precision(asked: AskedPrecision, model: nn.Module) -> Precision:
    """Returns the precision to train in; ``auto`` depends on device and model only.

    Args:
        asked: What the plan says.
        model: The global model, on its device.
    """
    device = next(model.parameters()).device
    modern = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    if asked == "auto":
        large = sum(weight.numel() for weight in model.parameters()) >= LARGE_MODEL
        return "float32" if not modern else "bf16" if large else "tf32"
    if asked == "tf32" and not modern:
        raise DoesNotFit(f"{device.type} has no TF32 here: use --precision float32 or bf16")
    return asked


@contextmanager
def multiply_in(precision: Precision | None) -> Iterator[None]:
    """Sets how a GPU multiplies inside the block: the same kernels for equal commands.

    cuDNN does not time its algorithms and takes only those that add up in a fixed order.

    Args:
        precision: The precision; None leaves all of torch's settings as they are.
    """
    if precision is None:
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    matmul.allow_tf32 = cudnn.allow_tf32 = precision != "float32"
    cudnn.benchmark, cudnn.deterministic = False, True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


def autocast(
    precision: Precision | None, device: torch.device
) -> AbstractContextManager[torch.autocast | None]:
    """Returns the context in which a network computes its outputs.

    Casts are not cached: a recorded step must cast the weights of its own time.

    Args:
        precision: The precision; only ``bf16`` changes anything.
        device: Where the network is.
    """
    if precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
