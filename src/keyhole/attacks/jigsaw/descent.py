"""Downhill from an arrangement, until neither many exchanges at once nor any single one helps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import linear_sum_assignment

from keyhole.attacks.jigsaw.costs import Costs, Indices
from keyhole.attacks.jigsaw.seams import Array

TURNS = 200
GAIN = 1e-9
"""A smaller gain than this is rounding."""


def descend(costs: Costs, arrangement: Indices) -> tuple[Indices, float]:
    """An arrangement of no higher cost, and its cost.

    Cells of one colour of the chessboard never adjoin, so the best exchange of their patches is a
    linear assignment; when neither colour gains, the best single swap of any two patches is tried.
    """
    total = costs.total(arrangement)
    for _ in range(TURNS):
        for move in moves(costs, arrangement):
            if (lower := costs.total(move)) < total - GAIN:
                arrangement, total = move, lower
                break
        else:
            break
    return arrangement, total


def moves(costs: Costs, arrangement: Indices) -> Iterator[Indices]:
    """What to try next, the cheapest first."""
    yield reassigned(costs, arrangement, colour=True)
    yield reassigned(costs, arrangement, colour=False)
    yield swapped(costs, arrangement)


def reassigned(costs: Costs, arrangement: Indices, *, colour: bool) -> Indices:
    """The best exchange of patches among the cells of one colour."""
    cells = np.flatnonzero(costs.black == colour)
    exchange = costs.if_all_else_stays(arrangement)[np.ix_(cells, arrangement[cells])]
    found = arrangement.copy()
    found[cells] = arrangement[cells][linear_sum_assignment(exchange)[1]]
    return found


def swapped(costs: Costs, arrangement: Indices) -> Indices:
    """The best swap of two patches."""
    change = swap_changes(costs, arrangement)
    first, second = divmod(int(change.argmin()), costs.size)
    found = arrangement.copy()
    found[[first, second]] = arrangement[[second, first]]
    return found


def swap_changes(costs: Costs, arrangement: Indices) -> Array:
    """The change of cost ``[m, m]`` when the patches of cells i and j change places.

    Each is judged in the other's cell with all else unmoved; where the two adjoin, that counted
    a seam of a patch with itself in place of the one that the swap makes.
    """
    there = costs.if_all_else_stays(arrangement)[:, arrangement]
    own = there.diagonal()
    change: Array = there + there.T - own[:, None] - own[None, :]
    for direction in (0, 2):
        i = np.flatnonzero(costs.neighbours[direction] < costs.size)
        j = costs.neighbours[direction, i]
        p, q, beside = arrangement[i], arrangement[j], costs.beside[direction]
        amends = beside[q, p] + beside[p, q] - beside[p, p] - beside[q, q]
        change[i, j] += amends
        change[j, i] += amends
    return change
