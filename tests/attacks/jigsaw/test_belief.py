from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from keyhole.attacks.jigsaw.belief import balance_prices, compute_surprise, compute_surprise_along
from keyhole.attacks.jigsaw.costs import (
    OUTLIER_SHARE,
    ArrangementCosts,
    Mask,
    compute_arrangement_costs,
)
from keyhole.attacks.jigsaw.placement import compute_patch_beliefs
from keyhole.attacks.jigsaw.seams import Array, SeamCosts


def row_of(cells: int, *, sharpness: float) -> ArrangementCosts:
    """A row of patches, its two ends in place; each patch likes best the one that follows it."""
    draw = np.random.default_rng(0)
    right = draw.normal(size=(cells, cells)) - sharpness * np.eye(cells, k=1)
    shuffled = np.ones((1, cells), dtype=bool)
    shuffled[0, [0, -1]] = False
    return compute_arrangement_costs(
        SeamCosts(right=right, below=np.zeros((cells, cells))), shuffled
    )


def exact_beliefs(costs: ArrangementCosts) -> Array:
    """By going through all arrangements."""
    weight = np.zeros((costs.size, costs.size))
    for arrangement in permutations(range(costs.size)):
        weight[np.arange(costs.size), arrangement] += np.exp(-costs.total(np.array(arrangement)))
    found: Array = weight / weight.sum(1, keepdims=True)
    return found


def by_row(seams: Array, possible: Mask) -> Array:
    """``-log P(q beside p)``, ``[n, n]``."""
    costs, may = torch.from_numpy(seams), torch.from_numpy(possible)
    return compute_surprise_along(costs, may, OUTLIER_SHARE, axis=1).numpy()


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 6.0])
def test_beliefs_come_near_the_exact_ones(sharpness: float) -> None:
    costs = row_of(8, sharpness=sharpness)
    found, exact = compute_patch_beliefs(costs, np.ones(100)), exact_beliefs(costs)
    assert np.abs(found - exact).mean() < np.abs(1 / costs.size - exact).mean() / 2


def test_clear_seams_leave_no_doubt() -> None:
    belief = compute_patch_beliefs(row_of(12, sharpness=9.0), np.ones(60))
    assert np.array_equal(belief.argmax(1), np.arange(10))
    assert belief.max(1).min() > 0.9


def test_seams_that_say_nothing_leave_all_in_doubt() -> None:
    nothing = SeamCosts(right=np.zeros((16, 16)), below=np.zeros((16, 16)))
    belief = compute_patch_beliefs(
        compute_arrangement_costs(nothing, np.ones((4, 4), dtype=bool)), np.ones(60)
    )
    assert np.allclose(belief, 1 / 16, atol=0.01)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_rows_and_columns_sum_to_one(temperature: float) -> None:
    belief = compute_patch_beliefs(row_of(10, sharpness=3.0), np.full(60, temperature))
    assert np.allclose(belief.sum(1), 1)
    assert np.allclose(belief.sum(0), 1, atol=0.05)


def test_balancing_keeps_what_is_balanced() -> None:
    belief = np.array([[0.7, 0.3], [0.3, 0.7]])
    logits = torch.from_numpy(np.log(belief))
    prices = balance_prices(logits, torch.zeros(1, 2, dtype=torch.double), rounds=5)
    assert np.allclose(torch.softmax(logits - prices, -1), belief)
    assert np.allclose(prices, 0)


def test_each_patch_has_one_neighbour_among_the_possible_ones() -> None:
    draw = np.random.default_rng(0)
    seams, possible = draw.normal(size=(6, 6)), draw.random((6, 6)) < 0.7
    chance = np.where(possible, np.exp(-by_row(seams, possible)), 0)
    assert np.allclose(chance.sum(1), 1)
    ranks = np.where(possible, seams, np.inf).argmin(1)
    assert np.array_equal(chance.argmax(1), ranks)


def test_no_seam_can_cost_more_than_chance_allows() -> None:
    seams: Array = np.full((5, 5), 1e4)
    seams[0, 1] = -1e4
    possible = ~np.eye(5, dtype=bool)
    found = by_row(seams, possible)
    assert found[0, 1] == pytest.approx(-np.log(1 - OUTLIER_SHARE + OUTLIER_SHARE / 4))
    assert found.max() == pytest.approx(-np.log(OUTLIER_SHARE / 4))


def test_who_can_have_no_neighbour_costs_what_chance_allows() -> None:
    nobody = torch.zeros(3, 3, dtype=torch.bool)
    found = compute_surprise(torch.randn(3, 3), nobody, OUTLIER_SHARE)
    assert torch.allclose(found, torch.full((3, 3), -2 * np.log(OUTLIER_SHARE)))
