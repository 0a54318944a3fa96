"""Convolutions by weights that are not differentiated, and products of columns.

The second derivative of ``F.conv2d`` computes the weight's gradient whether or not anyone asked for
it: a fifth of an iteration of ResNet-18. By a fixed weight a convolution is a linear map, and its
derivative the adjoint, whose derivative is the map again.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function
from torch.nn import functional as F

from keyhole.attacks.matching.gradients.unfolding import ConvGeometry


class _Convolve(Function):
    """``[M, C, H, W] -> [M, K, *output_size]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, geometry: ConvGeometry, groups: int) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.like, ctx.geometry, ctx.groups = x.detach(), geometry, groups
        return F.conv2d(
            x, weight, None, geometry.stride, geometry.padding, geometry.dilation, groups
        )

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return (
            _Adjoint.apply(gradient, weight, ctx.like, ctx.geometry, ctx.groups),
            None,
            None,
            None,
        )


class _Adjoint(Function):
    """The adjoint; ``like`` tells the shape of its result, whose values it does not read."""

    @staticmethod
    def forward(
        ctx: Any, y: Tensor, weight: Tensor, like: Tensor, geometry: ConvGeometry, groups: int
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.geometry, ctx.groups = geometry, groups
        found: Tensor = torch.ops.aten.convolution_backward(
            y,
            like,
            weight,
            None,
            geometry.stride,
            geometry.padding,
            geometry.dilation,
            False,
            (0, 0),
            groups,
            (True, False, False),
        )[0]
        return found

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        convolved = _Convolve.apply(gradient, weight, ctx.geometry, ctx.groups)
        return convolved, None, None, None, None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, geometry: ConvGeometry, groups: int
) -> Tensor:
    """``F.conv2d`` by a weight and a bias that need no gradient, in autocast's type."""
    if torch.is_autocast_enabled(x.device.type):
        dtype = torch.get_autocast_dtype(x.device.type)
        x, weight = x.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    out: Tensor = _Convolve.apply(x, weight, geometry, groups)
    return out if bias is None else out + bias[:, None, None]


class ProductOfColumns(Function):
    """``D U^T`` of output gradients D ``[N, C, K]`` and columns U ``[N, Q, K]``: ``[N, C, Q]``.

    The derivatives are written so that they are in the order of D and U as well: autograd's lie
    transposed, and folding them takes four times as long.
    """

    @staticmethod
    def forward(ctx: Any, output_gradients: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(output_gradients, columns)
        return output_gradients @ columns.mT

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        output_gradients, columns = ctx.saved_tensors
        return gradient @ columns, gradient.mT @ output_gradients
