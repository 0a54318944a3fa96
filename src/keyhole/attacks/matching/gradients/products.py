"""Products of matrices, with derivatives that multiply no more than they must.

Autograd differentiates one operation after another: by a Gram matrix it multiplies twice where
symmetry needs one product, and it leaves derivatives transposed, so that adding two of them reads
memory across. Here every derivative lies as that by which it is taken.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import Function, once_differentiable


class GramProduct(Function):
    """``|D^T U|^2 = sum((D D^T) * (U U^T))`` of each victim.

    ``D [N, K, C]`` and ``U [N, K, Q]`` give ``[N]``. Gram matrices are symmetric: the derivative by
    D is ``2 (U U^T) D``, that by U ``2 (D D^T) U``.
    """

    @staticmethod
    def forward(ctx: Any, output_gradients: Tensor, inputs: Tensor) -> Tensor:
        outer, inner = output_gradients @ output_gradients.mT, inputs @ inputs.mT
        ctx.save_for_backward(output_gradients, inputs, outer, inner)
        return sum_per_victim(outer * inner)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Any:
        output_gradients, inputs, outer, inner = ctx.saved_tensors
        double = (2 * gradient).to(outer)[:, None, None]
        by_outputs = multiply_as(inner * double, output_gradients, output_gradients)
        return by_outputs, multiply_as(outer * double, inputs, inputs)


class _Multiply(Function):
    """``a @ b`` of matrices ``[..., rows, columns]``."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        a, b = ctx.saved_tensors
        return _Derivatives.apply(gradient, a, b)


class _Derivatives(Function):
    """``g b^T`` and ``a^T g``, the derivatives of ``a b``."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(gradient, a, b)
        return multiply_as(gradient, b.mT, a), multiply_as(a.mT, gradient, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Any:
        gradient, a, b = ctx.saved_tensors
        outer = (by_a @ b).add_(a @ by_b)
        return outer, multiply_as(gradient, by_b.mT, a), multiply_as(by_a.mT, gradient, b)


def multiply_as(left: Tensor, right: Tensor, like: Tensor) -> Tensor:
    """``left @ right`` in the memory order of a matrix of the same shape.

    Args:
        left: ``[..., rows, inner]``.
        right: ``[..., inner, columns]``.
        like: ``[..., rows, columns]``; if it lies transposed, so does the product.
    """
    if like.is_contiguous() or not like.mT.is_contiguous():
        return left @ right
    return (right.mT @ left.mT).mT


def multiply_twice_differentiably(a: Tensor, b: Tensor) -> Tensor:
    """``a @ b`` whose derivatives, up to the second, lie as a and b do.

    Args:
        a: ``[..., rows, inner]``.
        b: ``[..., inner, columns]``, with the same leading axes.
    """
    product: Tensor = _Multiply.apply(pack(a), pack(b))
    return product


def pack(x: Tensor) -> Tensor:
    """The same matrices one after another in memory, each plain or transposed as it was.

    A product copies what lies otherwise, and an operand has part in six products.

    Args:
        x: ``[..., rows, columns]``.
    """
    return x.mT.contiguous().mT if x.stride(-2) == 1 else x.contiguous()


def are_stacks(a: Any, b: Any) -> bool:
    """Whether two values are stacks of as many float32 matrices in a CPU's memory."""
    if not isinstance(a, Tensor) or not isinstance(b, Tensor) or a.ndim < 3:
        return False
    both = a.is_cpu and b.is_cpu and a.dtype == b.dtype == torch.float32
    return both and not torch.is_autocast_enabled("cpu") and a.shape[:-2] == b.shape[:-2]


def sum_per_victim(x: Tensor) -> Tensor:
    """Sums over all axes but the first, in float32 at least: ``[N]``."""
    return x.flatten(1).sum(1, dtype=torch.promote_types(x.dtype, torch.float32))
