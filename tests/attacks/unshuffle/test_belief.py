from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from keyhole.attacks.unshuffle.belief import balanced, beliefs
from keyhole.attacks.unshuffle.costs import Costs, arrangement_costs
from keyhole.attacks.unshuffle.seams import Array, Seams


def row_of(cells: int, *, sharpness: float) -> Costs:
    """A row of patches, its two ends in place; each patch likes best the one that follows it."""
    draw = np.random.default_rng(0)
    right = draw.normal(size=(cells, cells)) - sharpness * np.eye(cells, k=1)
    shuffled = np.ones((1, cells), dtype=bool)
    shuffled[0, [0, -1]] = False
    return arrangement_costs(Seams(right=right, below=np.zeros((cells, cells))), shuffled)


def exact_beliefs(costs: Costs) -> Array:
    """By going through all arrangements."""
    weight = np.zeros((costs.size, costs.size))
    for arrangement in permutations(range(costs.size)):
        weight[np.arange(costs.size), arrangement] += np.exp(-costs.total(np.array(arrangement)))
    found: Array = weight / weight.sum(1, keepdims=True)
    return found


@pytest.mark.parametrize("sharpness", [1.0, 3.0, 6.0])
def test_beliefs_come_near_the_exact_ones(sharpness: float) -> None:
    costs = row_of(8, sharpness=sharpness)
    found, exact = beliefs(costs, np.ones(100)), exact_beliefs(costs)
    assert np.abs(found - exact).mean() < np.abs(1 / costs.size - exact).mean() / 2


def test_clear_seams_leave_no_doubt() -> None:
    belief = beliefs(row_of(12, sharpness=9.0), np.ones(60))
    assert np.array_equal(belief.argmax(1), np.arange(10))
    assert belief.max(1).min() > 0.9


def test_seams_that_say_nothing_leave_all_in_doubt() -> None:
    nothing = Seams(right=np.zeros((16, 16)), below=np.zeros((16, 16)))
    belief = beliefs(arrangement_costs(nothing, np.ones((4, 4), dtype=bool)), np.ones(60))
    assert np.allclose(belief, 1 / 16, atol=0.01)


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_rows_and_columns_sum_to_one(temperature: float) -> None:
    belief = beliefs(row_of(10, sharpness=3.0), np.full(60, temperature))
    assert np.allclose(belief.sum(1), 1)
    assert np.allclose(belief.sum(0), 1, atol=0.05)


def test_balancing_keeps_what_is_balanced() -> None:
    belief = np.array([[0.7, 0.3], [0.3, 0.7]])
    found, price = balanced(np.log(belief), np.zeros(2))
    assert np.allclose(found, belief)
    assert np.allclose(price, 0)
