from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.analytic.nonnegative import unmix
from keyhole.attacks.analytic.positions import overlap, separate_positions


def draw_layer(batch: int, channels: int, grid: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs behind a ReLU, gradients at the output, and the kernel's gradient."""
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(batch, channels, *grid, generator=draw).relu().double()
    gradients = torch.randn(batch, channels, *grid, generator=draw).double()
    kernel = torch.zeros(channels, channels, 3, 3, dtype=torch.double, requires_grad=True)
    output = F.conv2d(inputs, kernel, padding=1)
    (gradient,) = torch.autograd.grad((output * gradients).sum(), [kernel])
    return inputs, gradients, gradient


def mixing_error(found: Tensor, true: Tensor) -> float:
    """How far the true rows are from a combination of those found."""
    rows, truth = found.flatten(1), true.flatten(1)
    mixing = torch.linalg.lstsq(rows.T, truth.T).solution
    return float((rows.T @ mixing - truth.T).norm() / truth.norm())


@pytest.mark.parametrize(("batch", "grid"), [(1, (3, 4)), (3, (2, 3)), (5, (2, 2))])
def test_positions_come_apart_by_the_kernels_shifts(batch: int, grid: tuple[int, int]) -> None:
    inputs, gradients, gradient = draw_layer(batch, 32, grid)
    found = separate_positions(gradient.float(), grid, batch)
    assert found is not None
    assert found.inputs.shape == inputs.shape
    assert mixing_error(found.inputs, inputs) < 1e-4
    assert mixing_error(found.gradients, gradients) < 1e-4
    assert found.mismatch < 1e-4


def test_gradients_that_sum_to_0_as_behind_batch_norm_come_apart_too() -> None:
    inputs, gradients, _ = draw_layer(3, 32, (2, 3))
    gradients = gradients - gradients.mean((0, 2, 3), keepdim=True)
    kernel = torch.zeros(32, 32, 3, 3, dtype=torch.double, requires_grad=True)
    output = F.conv2d(inputs, kernel, padding=1)
    (gradient,) = torch.autograd.grad((output * gradients).sum(), [kernel])
    found = separate_positions(gradient.float(), (2, 3), 3)
    assert found is not None
    assert mixing_error(found.inputs, inputs) < 1e-4


def test_one_matrix_mixes_inputs_and_gradients() -> None:
    inputs, gradients, gradient = draw_layer(3, 32, (2, 3))
    found = separate_positions(gradient, (2, 3), 3)
    assert found is not None
    flat = found.inputs.flatten(1)
    mixing = torch.linalg.lstsq(flat.T, inputs.flatten(1).T).solution.T
    turned = torch.linalg.inv(mixing).T @ found.gradients.flatten(1) * gradient.abs().max()
    assert torch.allclose(turned, gradients.flatten(1), atol=1e-6)


def test_too_many_positions_and_noise_are_refused() -> None:
    _, _, gradient = draw_layer(3, 32, (2, 3))
    assert separate_positions(gradient, (2, 3), 6) is None  # 36 positions, 32 channels
    assert separate_positions(gradient, (2, 3), 4) is None  # of rank 18, not 24
    noise = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(1)).double()
    assert separate_positions(gradient + 0.3 * noise, (2, 3), 3) is None


def test_the_layers_of_a_batch_are_unmixed() -> None:
    draw = torch.Generator().manual_seed(0)
    true = torch.randn(6, 900, generator=draw).double().relu()
    true[1, :600] = true[0, :600]  # two images that are much alike
    mixed = torch.randn(6, 6, generator=draw).double() @ true
    found = unmix(mixed, torch.Generator().manual_seed(1))
    assert found is not None
    rows = F.normalize(found @ mixed, dim=1)
    cosines = rows @ F.normalize(true, dim=1).T
    assert sorted(cosines.argmax(1).tolist()) == list(range(6))
    assert cosines.max(1).values.min() > 1 - 1e-9


def test_rows_with_no_zeros_are_not_unmixed() -> None:
    draw = torch.Generator().manual_seed(0)
    mixed = torch.randn(3, 3, generator=draw).double() @ (
        1 + torch.rand(3, 200, generator=draw).double()
    )
    assert unmix(mixed, torch.Generator().manual_seed(1)) is None


def test_a_single_row_is_turned_to_be_positive() -> None:
    assert unmix(-torch.ones(1, 4).double(), torch.Generator()).tolist() == [[-1.0]]


def test_shifts_overlap_where_both_are_inside() -> None:
    for step in (-1, 0, 1):
        to, source = overlap(step, 4)
        assert [q - step for q in range(4)[to]] == list(range(4)[source])
