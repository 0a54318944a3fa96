"""Improves an arrangement until neither many exchanges at once nor any single one helps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from keyhole.attacks.jigsaw.costs import ArrangementCosts, Indices
from keyhole.attacks.jigsaw.seams import Array

MAX_MOVES = 200
MIN_GAIN = 1e-9
"""A smaller gain than this is rounding."""


def descend(costs: ArrangementCosts, arrangement: Indices) -> tuple[Indices, float]:
    """An arrangement of no higher cost, and its cost.

    Cells of one colour of the chessboard never adjoin, so the best exchange of their patches is a
    linear assignment; when neither colour gains, the best single swap of any two patches is tried.
    """
    total = costs.total(arrangement)
    for _ in range(MAX_MOVES):
        for candidate in propose_moves(costs, arrangement):
            if (lower := costs.total(candidate)) < total - MIN_GAIN:
                arrangement, total = candidate, lower
                break
        else:
            break
    return arrangement, total


def propose_moves(costs: ArrangementCosts, arrangement: Indices) -> Iterator[Indices]:
    """Arrangements to try next, those that are cheapest to compute first."""
    yield reassign_colour(costs, arrangement, black=True)
    yield reassign_colour(costs, arrangement, black=False)
    yield swap_best_pair(costs, arrangement)


def reassign_colour(costs: ArrangementCosts, arrangement: Indices, *, black: bool) -> Indices:
    """Makes the best exchange of patches among the cells of one colour."""
    cells = np.flatnonzero(costs.black == black)
    exchange = costs.conditional(arrangement)[np.ix_(cells, arrangement[cells])]
    result = arrangement.copy()
    result[cells] = arrangement[cells][linear_sum_assignment(exchange)[1]]
    return result


def swap_best_pair(costs: ArrangementCosts, arrangement: Indices) -> Indices:
    """Makes the best swap of two patches."""
    changes = compute_swap_changes(costs, arrangement)
    first, second = divmod(int(changes.argmin()), costs.size)
    result = arrangement.copy()
    result[[first, second]] = arrangement[[second, first]]
    return result


def compute_swap_changes(costs: ArrangementCosts, arrangement: Indices) -> Array:
    """The change of cost ``[m, m]`` when the patches of cells i and j change places.

    Each is judged in the other's cell while all others stay. Where the two adjoin, that counts a
    seam of a patch with itself in place of the one that the swap makes, which is corrected.
    """
    there = costs.conditional(arrangement)[:, arrangement]
    own = there.diagonal()
    change: Array = there + there.T - own[:, None] - own[None, :]
    for direction in (0, 2):
        i = np.flatnonzero(costs.neighbours[direction] < costs.size)
        j = costs.neighbours[direction, i]
        p, q, pairwise = arrangement[i], arrangement[j], costs.pairwise[direction]
        correction = pairwise[q, p] + pairwise[p, q] - pairwise[p, p] - pairwise[q, q]
        change[i, j] += correction
        change[j, i] += correction
    return change
