"""The softmax of large tensors on a CPU, with derivatives that pass over memory once.

Attention's probabilities are larger than a processor's caches. Its second derivative is six
operations, each of which would read and write all of memory; here they follow one another on one
block of rows at a time. With ``y = softmax(x)`` and the derivative ``v`` of the loss by the first
derivative ``y (g - g.y)``:

    by g: y (v - v.y),        by y: v (g - g.y) - g (v.y),        where a.b = sum(a b) of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

BLOCK = 1 << 16
"""Numbers in a block: four blocks fit into a core's own cache."""
LARGE = 1 << 18
"""Numbers from which a tensor does not."""


class _Softmax(torch.autograd.Function):
    """``softmax(x)`` over the last axis."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (y,) = ctx.saved_tensors
        return _SoftmaxBackward.apply(gradient, y)


class _SoftmaxBackward(torch.autograd.Function):
    """``y (g - g.y)``."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, y: Tensor) -> Tensor:
        ctx.save_for_backward(gradient, y)
        return derive(gradient, y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, outer: Tensor) -> Any:
        gradient, y = ctx.saved_tensors
        by_output = torch.empty_like(y, memory_format=torch.contiguous_format)
        for v, g, probabilities, out in blocks(outer, gradient, y, by_output):
            first = (g * probabilities).sum(-1, keepdim=True)
            second = (v * probabilities).sum(-1, keepdim=True)
            torch.sub(g, first, out=out).mul_(v).addcmul_(g, second, value=-1)
        return derive(outer, y), by_output


def derive(gradient: Tensor, y: Tensor) -> Tensor:
    """The derivative ``y (g - g.y)`` of a softmax y."""
    return torch._softmax_backward_data(gradient, y, -1, y.dtype)


def blocks(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors as matrices of rows, some rows at a time; the last may be written into."""
    rows = [tensor.reshape(-1, tensor.shape[-1]) for tensor in tensors]
    height = max(1, BLOCK // max(1, rows[0].shape[1]))
    return zip(*(torch.split(matrix, height) for matrix in rows), strict=True)


def softmax_rows(x: Tensor) -> Tensor:
    """The softmax over the last axis, which can be differentiated twice.

    Args:
        x: ``[..., columns]``.
    """
    probabilities: Tensor = _Softmax.apply(x)
    return probabilities


def is_large_softmax(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> bool:
    """Whether a softmax is over the last axis of a tensor that no cache of a CPU holds.

    The parameters are those of ``F.softmax``; where another type is asked for, the answer is no.
    """
    if not isinstance(x, Tensor) or not isinstance(dim, int) or dtype is not None:
        return False
    return x.is_cpu and dim in (-1, x.ndim - 1) and x.numel() >= LARGE
