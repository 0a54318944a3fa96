from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from keyhole.attacks.jigsaw.costs import (
    ArrangementCosts,
    Indices,
    Mask,
    compute_arrangement_costs,
    compute_pairwise_costs,
)
from keyhole.attacks.jigsaw.descent import compute_swap_changes, descend, propose_moves
from keyhole.attacks.jigsaw.seams import SeamCosts

GRID = (4, 5)


def some_mask() -> Mask:
    mask = np.zeros(GRID, dtype=bool)
    mask[0, 1:4] = mask[1, 0:4] = mask[2, 2:] = mask[3, 4] = True
    return mask


def some_seams() -> SeamCosts:
    draw = np.random.default_rng(0)
    return SeamCosts(right=draw.normal(size=(20, 20)), below=draw.normal(size=(20, 20)))


def some_costs() -> ArrangementCosts:
    return compute_arrangement_costs(some_seams(), some_mask())


def some_arrangement(seed: int = 1) -> Indices:
    return np.random.default_rng(seed).permutation(some_mask().sum())


def seam_by_seam(arrangement: Indices) -> float:
    """The cost of the whole grid, less the seams of cells that never moved."""
    mask, cells = some_mask(), np.flatnonzero(some_mask())
    shown = np.arange(mask.size)
    shown[cells] = cells[arrangement]
    shown = shown.reshape(GRID)
    right = compute_pairwise_costs(some_seams().right, mask, axis=1)[0]
    below = compute_pairwise_costs(some_seams().below, mask, axis=0)[0]
    total = 0.0
    for y, x in product(*map(range, GRID)):
        if x + 1 < GRID[1] and (mask[y, x] or mask[y, x + 1]):
            total += right[shown[y, x], shown[y, x + 1]]
        if y + 1 < GRID[0] and (mask[y, x] or mask[y + 1, x]):
            total += below[shown[y, x], shown[y + 1, x]]
    return total


@pytest.mark.parametrize("seed", range(3))
def test_the_total_is_the_sum_over_all_seams(seed: int) -> None:
    arrangement = some_arrangement(seed)
    assert some_costs().total(arrangement) == pytest.approx(seam_by_seam(arrangement))


def test_a_patch_is_judged_beside_its_neighbours_as_they_lie() -> None:
    costs, arrangement = some_costs(), some_arrangement()
    judged = costs.conditional(arrangement)
    for cell, patch in product(range(costs.size), repeat=2):
        moved = arrangement.copy()
        moved[cell] = patch
        there, own = judged[cell, patch], judged[cell, arrangement[cell]]
        assert there - own == pytest.approx(costs.total(moved) - costs.total(arrangement))


def test_neighbours_are_mutual_and_of_the_other_colour() -> None:
    costs = some_costs()
    for direction, cell in product(range(4), range(costs.size)):
        there = costs.neighbours[direction, cell]
        if there < costs.size:
            assert costs.neighbours[direction ^ 1, there] == cell
            assert costs.black[cell] != costs.black[there]


def test_patches_that_never_moved_compete_only_at_open_sides() -> None:
    """In a row with cells 1 and 2 shuffled, patch 0 can have 1 or 2 to its right, and not 3."""
    seams = np.zeros((4, 4))
    after, before = compute_pairwise_costs(seams, np.array([[False, True, True, False]]), axis=1)
    by_row, by_column = -np.log(1 / 2), -np.log(1 / 2)
    assert after[0, 1] == pytest.approx((by_row + by_column) / 2)
    assert np.array_equal(before, after.T)


@pytest.mark.parametrize("seed", range(3))
def test_changes_by_a_swap_are_exact(seed: int) -> None:
    costs, arrangement = some_costs(), some_arrangement(seed)
    changes = compute_swap_changes(costs, arrangement)
    for i, j in product(range(costs.size), repeat=2):
        swapped = arrangement.copy()
        swapped[[i, j]] = arrangement[[j, i]]
        exact = costs.total(swapped) - costs.total(arrangement)
        assert changes[i, j] == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_descent_ends_where_no_move_helps(seed: int) -> None:
    costs, start = some_costs(), some_arrangement(seed)
    found, total = descend(costs, start)
    assert sorted(found) == list(range(costs.size))
    assert total == pytest.approx(costs.total(found))
    assert total <= costs.total(start)
    assert all(costs.total(move) >= total - 1e-6 for move in propose_moves(costs, found))
    assert compute_swap_changes(costs, found).min() > -1e-6
