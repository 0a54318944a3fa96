from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching.gradients.unfolding import (
    ConvGeometry,
    convolve_columns,
    unfold,
    without_writes,
)

GEOMETRIES = [
    ConvGeometry(kernel=(3, 3), stride=(1, 1), padding=(1, 1), dilation=(1, 1), image_size=(5, 5)),
    ConvGeometry(kernel=(3, 2), stride=(2, 1), padding=(0, 2), dilation=(1, 2), image_size=(7, 5)),
    ConvGeometry(kernel=(2, 3), stride=(3, 2), padding=(1, 0), dilation=(2, 1), image_size=(6, 8)),
    ConvGeometry(kernel=(5, 5), stride=(2, 2), padding=(2, 2), dilation=(1, 1), image_size=(6, 6)),
    ConvGeometry(kernel=(1, 1), stride=(1, 1), padding=(0, 0), dilation=(1, 1), image_size=(4, 3)),
    ConvGeometry(kernel=(1, 1), stride=(2, 3), padding=(0, 0), dilation=(1, 1), image_size=(5, 7)),
    ConvGeometry(kernel=(1, 1), stride=(2, 2), padding=(1, 1), dilation=(1, 1), image_size=(4, 4)),
    ConvGeometry(kernel=(4, 4), stride=(4, 4), padding=(0, 0), dilation=(1, 1), image_size=(8, 6)),
]
EVERY = pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)


@pytest.fixture(autouse=True, params=["written", "stacked"])
def way(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything holds for both ways to unfold: writing in place and stacking."""
    if request.param == "written":
        yield
        return
    with without_writes():
        yield


def image(geometry: ConvGeometry) -> Tensor:
    return torch.randn(2, 3, *geometry.image_size, dtype=torch.double)


def torchs(x: Tensor, g: ConvGeometry) -> Tensor:
    return F.unfold(x, g.kernel, dilation=g.dilation, padding=g.padding, stride=g.stride)


@EVERY
def test_the_columns_are_torchs(geometry: ConvGeometry) -> None:
    x = image(geometry)
    found = unfold(x, geometry)
    assert torch.equal(found, torchs(x, geometry))
    assert found.shape[2] == geometry.output_size[0] * geometry.output_size[1]


@EVERY
def test_the_columns_times_the_weight_are_the_convolution(geometry: ConvGeometry) -> None:
    x = image(geometry)
    weight = torch.randn(4, 3, *geometry.kernel, dtype=torch.double)
    made = F.conv2d(x, weight, None, geometry.stride, geometry.padding, geometry.dilation)
    bias = torch.randn(4, dtype=torch.double)
    columns = unfold(x, geometry).mT
    torch.testing.assert_close(convolve_columns(columns, weight, None, geometry), made)
    shifted = made + bias.view(-1, 1, 1)
    torch.testing.assert_close(convolve_columns(columns, weight, bias, geometry), shifted)
    called = geometry.stride, geometry.padding, geometry.dilation
    assert ConvGeometry.from_conv(x, weight, *called) == geometry


@EVERY
def test_the_adjoint_is_torchs(geometry: ConvGeometry) -> None:
    x = image(geometry).requires_grad_()
    columns = unfold(x, geometry)
    along = torch.randn_like(columns)
    found = torch.autograd.grad(columns, x, along)
    expected = torch.autograd.grad(torchs(x, geometry), x, along)
    torch.testing.assert_close(found, expected)


@EVERY
def test_it_can_be_differentiated_twice(geometry: ConvGeometry) -> None:
    x = torch.randn(1, 1, *geometry.image_size, dtype=torch.double, requires_grad=True)
    columns = partial(unfold, geometry=geometry)
    assert torch.autograd.gradcheck(columns, (x,))
    assert torch.autograd.gradgradcheck(columns, (x,))


@EVERY
def test_second_derivatives_through_it_are_torchs(geometry: ConvGeometry) -> None:
    """Of a function that is not linear: differentiating its gradient's length."""

    def bend(columns: Tensor, x: Tensor) -> Tensor:
        slope = torch.autograd.grad(columns.pow(3).sum(), x, create_graph=True)[0]
        return torch.autograd.grad(slope.square().sum(), x)[0]

    x = image(geometry).requires_grad_()
    torch.testing.assert_close(bend(unfold(x, geometry), x), bend(torchs(x, geometry), x))


def test_strided_images_are_taken() -> None:
    geometry = GEOMETRIES[0]
    x = torch.randn(2, 5, 5, 3).permute(0, 3, 1, 2)
    assert torch.equal(unfold(x, geometry), torchs(x, geometry))
