"""Sums over whole gradients whose derivatives take fewer passes through memory than autograd's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable

TINY = 1e-30
"""Keeps norms of vanishing gradients away from 0."""


class SquaredNorms(Function):
    """``|x|^2`` of each row of ``[N, P]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return square_rows(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        x: Tensor = ctx.saved_tensors[0]
        return x * (2 * gradient)[:, None]


class DirectionGaps(Function):
    """``|g / |g| - t / |t||^2 / 2`` of each victim's whole gradient g and target t: ``[N]``.

    Of some parameters the gradients exist; of the others there are sums of products only. The
    former are read four times, and twice more to be differentiated by, once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dots: Tensor,
        squares: Tensor,
        target_squares: Tensor,
        target_scale: Tensor,
        targets: Sequence[Tensor],
        weights: Sequence[float],
        *gradients: Tensor,
    ) -> Tensor:
        """The distances.

        Args:
            dots: ``<g, t>`` of the parameters that are products only, ``[N]``.
            squares: ``|g|^2`` of them.
            target_squares: ``|t|^2`` of them.
            target_scale: ``1 / |t|`` of all parameters.
            targets: ``t`` of the other parameters, ``[N, P]`` each.
            weights: What each of these counts.
            gradients: ``g`` of each of these, ``[N, P]``.
        """
        total = squares.clone()
        for weight, g in zip(weights, gradients, strict=True):
            total += weight * square_rows(g)
        scale = (total.clamp(min=0) + TINY).rsqrt()
        products = squares * scale.square() + target_squares * target_scale.square()
        loss = products / 2 - dots * scale * target_scale
        by_scale = squares * scale - dots * target_scale
        for weight, g, t in zip(weights, gradients, targets, strict=True):
            gap = torch.addcmul(t * -target_scale[:, None], g, scale[:, None])
            loss += weight / 2 * square_rows(gap)
            by_scale += weight * (gap * g).sum(1)
        along = by_scale * scale  # small where scale is large: the cube of scale alone overflows
        by_square = -along * scale * scale * (total >= 0) / 2
        ctx.save_for_backward(scale, target_scale, by_square, *gradients)
        ctx.targets, ctx.weights = targets, weights
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        scale, target_scale, by_square, *gradients = ctx.saved_tensors
        by_dot = -gradient * scale * target_scale
        by_own = gradient * (scale.square() + 2 * by_square)
        found = [
            torch.addcmul(t * (weight * by_dot)[:, None], g, (weight * by_own)[:, None])
            for weight, g, t in zip(ctx.weights, gradients, ctx.targets, strict=True)
        ]
        return by_dot, by_own / 2, None, None, None, None, *found


def square_rows(x: Tensor) -> Tensor:
    """``|x|^2`` of each row of ``[N, P]``, without squares in memory."""
    squares: Tensor = torch.linalg.vector_norm(x, dim=1).square()
    return squares
