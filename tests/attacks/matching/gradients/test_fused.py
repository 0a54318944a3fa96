"""Sums over whole gradients: values and derivatives."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.fused import DirectionGaps, SquaredNorms

WEIGHTS = [1.0, 0.5]


def draw(number: int, *shape: int) -> Tensor:
    draws = torch.Generator().manual_seed(number)
    return torch.randn(*shape, dtype=torch.double, generator=draws)


def sum_squares(terms: list[Tensor]) -> Tensor:
    pairs = zip(WEIGHTS, terms, strict=True)
    return torch.stack([weight * term.square().sum(1) for weight, term in pairs]).sum(0)


def test_squared_norms_are_differentiated_twice() -> None:
    x = draw(0, 2, 5).requires_grad_()
    torch.testing.assert_close(SquaredNorms.apply(x), x.square().sum(1))
    assert torch.autograd.gradcheck(SquaredNorms.apply, (x,))
    assert torch.autograd.gradgradcheck(SquaredNorms.apply, (x,))


def test_gaps_are_one_minus_the_cosine_of_all_parameters() -> None:
    """Two parameters whose gradients exist, and one of which only products are known."""
    gradients = [draw(1, 3, 4).requires_grad_(), draw(2, 3, 5).requires_grad_()]
    targets = [draw(3, 3, 4), draw(4, 3, 5)]
    other, other_target = draw(5, 3, 6), draw(6, 3, 6)
    dots = (other * other_target).sum(1).requires_grad_()
    squares = other.square().sum(1).requires_grad_()
    target_squares = other_target.square().sum(1)
    lengths = (sum_squares(targets) + target_squares).sqrt()

    def measure(dots: Tensor, squares: Tensor, *gradients: Tensor) -> Tensor:
        found: Tensor = DirectionGaps.apply(
            dots, squares, target_squares, 1 / lengths, targets, WEIGHTS, *gradients
        )
        return found

    pairs = zip(WEIGHTS, gradients, targets, strict=True)
    products = torch.stack([weight * (g * t).sum(1) for weight, g, t in pairs]).sum(0) + dots
    cosine = products / (sum_squares(gradients) + squares).sqrt() / lengths
    torch.testing.assert_close(measure(dots, squares, *gradients), 1 - cosine)
    assert torch.autograd.gradcheck(measure, (dots, squares, *gradients))


def test_gaps_of_equal_directions_are_zero_to_the_last_digit() -> None:
    """Where one minus the cosine would cancel to rounding errors."""
    target = draw(7, 2, 50).float()
    scale, none = 1 / target.norm(dim=1), torch.zeros(2)
    gap = DirectionGaps.apply(none, none, none, scale, [target], [1.0], 3 * target)
    assert float(gap.max()) < 1e-13
