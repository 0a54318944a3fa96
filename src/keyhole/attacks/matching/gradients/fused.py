"""Sums over whole gradients whose derivatives take fewer passes through memory than autograd's."""

from __future__ import annotations

from typing import Any

from torch import Tensor, addcmul
from torch.autograd.function import Function, once_differentiable


class SquaredNorms(Function):
    """``|x|^2`` of each row of ``[N, P]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square().sum(1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return x * (2 * gradient)[:, None]


class HalfSquaredGaps(Function):
    """``|g * scale - t * target_scale|^2 / 2`` of each row of g and t, ``[N, P]``; scales ``[N]``.

    Only g and its scale are differentiated, once.
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, scale: Tensor, t: Tensor, target_scale: Tensor) -> Tensor:
        gap = addcmul(t * -target_scale[:, None], g, scale[:, None])
        ctx.save_for_backward(g, scale, gap)
        return gap.square().sum(1) / 2

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        g, scale, gap = ctx.saved_tensors
        return gap * (gradient * scale)[:, None], gradient * (gap * g).sum(1), None, None
