"""Convolutions by frozen weights and products of columns: values, both derivatives, work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from keyhole.attacks.matching.gradients.frozen_convolution import ProductOfColumns, convolve
from keyhole.attacks.matching.gradients.unfolding import ConvGeometry, multiply_columns, unfold

CASES = [(1, 1, 1, 1), (2, 0, 1, 2), (2, 2, 2, 1)]
"""Stride, padding, dilation and groups."""


def draw(*shape: int, requires_grad: bool = False) -> Tensor:
    numbers = torch.randn(*shape, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    return numbers.requires_grad_(requires_grad)


def differentiate_twice(out: Tensor, x: Tensor) -> Tensor:
    """The derivative by x of a function of the derivative by x."""
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    return torch.autograd.grad((first.sin() * out.sum()).sum(), x)[0]


@pytest.mark.parametrize(("stride", "padding", "dilation", "groups"), CASES)
def test_convolutions_are_torchs(stride: int, padding: int, dilation: int, groups: int) -> None:
    x, weight, bias = draw(2, 4, 9, 7, requires_grad=True), draw(6, 4 // groups, 3, 3), draw(6)
    geometry = ConvGeometry.from_conv(x, weight, stride, padding, dilation)
    ours = convolve(x, weight, bias, geometry, groups)
    theirs = F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    torch.testing.assert_close(ours, theirs)
    expected = differentiate_twice(theirs, x)
    torch.testing.assert_close(differentiate_twice(ours, x), expected)
    if groups == 1:
        by_columns = multiply_columns(unfold(x, geometry), weight, bias, geometry)
        torch.testing.assert_close(by_columns, theirs)
        torch.testing.assert_close(differentiate_twice(by_columns, x), expected)


class CountConvolutions(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += "convolution" in str(func)
        return func(*args, **(kwargs or {}))


def test_nobody_computes_the_weights_gradient() -> None:
    x, weight = draw(2, 3, 8, 8, requires_grad=True), draw(4, 3, 3, 3)
    geometry = ConvGeometry.from_conv(x, weight, 1, 1, 1)
    with CountConvolutions() as ours:
        differentiate_twice(convolve(x, weight, None, geometry, 1), x)
    with CountConvolutions() as theirs:
        differentiate_twice(F.conv2d(x, weight, None, 1, 1), x)
    assert ours.count < theirs.count


def test_products_of_columns_are_differentiated_in_their_own_order() -> None:
    left, columns = draw(2, 3, 5, requires_grad=True), draw(2, 4, 5, requires_grad=True)
    product = ProductOfColumns.apply(left, columns)
    torch.testing.assert_close(product, left @ columns.mT)
    by_left, by_columns = torch.autograd.grad(product.sum(), [left, columns])
    assert by_left.is_contiguous()
    assert by_columns.is_contiguous()
    assert torch.autograd.gradcheck(ProductOfColumns.apply, (left, columns))
