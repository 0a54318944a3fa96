"""What an arrangement costs: a sum over the shuffled cells, and over pairs of them that adjoin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from keyhole.attacks.jigsaw.belief import surprise
from keyhole.attacks.jigsaw.seams import Array, Seams

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

STEPS = ((0, 1), (0, -1), (1, 0), (-1, 0))
"""Right, left, below, above, as (rows, columns); the opposite of direction d is ``d ^ 1``."""

UNFORESEEN = 0.1
"""The share of true seams that the image's statistics do not foresee, such as an object's edge."""


@dataclass(frozen=True)
class Costs:
    """In nats, of m shuffled cells and the m patches found in them, both in the grid's order.

    An arrangement is a permutation ``[m]``: cell i shows patch ``arrangement[i]``.
    """

    alone: Array
    """``[m, m]``: patch p (column) in cell i (row), beside the neighbours that never moved."""
    beside: Array
    """``[4, m, m]``: patch p (row) with patch q (column) as its neighbour in direction d."""
    neighbours: Indices
    """``[4, m]``: which cell adjoins in direction d; m where there is none or it never moved."""
    black: Mask
    """``[m]``: the cells of one colour of the chessboard, none of which adjoin."""

    @property
    def size(self) -> int:
        return len(self.alone)

    def total(self, arrangement: Indices) -> float:
        """Minus the log-probability of all seams of shuffled cells, each counted once."""
        total = self.alone[np.arange(self.size), arrangement].sum()
        for direction in (0, 2):
            here = np.flatnonzero(self.neighbours[direction] < self.size)
            there = self.neighbours[direction, here]
            total += self.beside[direction, arrangement[here], arrangement[there]].sum()
        return float(total)

    def if_all_else_stays(self, arrangement: Indices) -> Array:
        """The cost ``[m, m]`` of patch p in cell i where the neighbours are as arranged."""
        total = self.alone.copy()
        for direction in range(4):
            here = np.flatnonzero(self.neighbours[direction] < self.size)
            there = arrangement[self.neighbours[direction, here]]
            total[here] += self.beside[direction].T[there]
        return total


def arrangement_costs(seams: Seams, shuffled: Mask) -> Costs:
    """The costs in the cells that are ``shuffled [gh, gw]``, all others being in their places."""
    toward = [*both_ways(seams.right, shuffled, 1), *both_ways(seams.below, shuffled, 0)]
    cells = np.flatnonzero(shuffled)
    size, outside = len(cells), shuffled.size
    numbers = np.pad(np.arange(outside).reshape(shuffled.shape), 1, constant_values=outside)
    place = np.full(outside + 1, size)
    place[cells] = np.arange(size)
    alone, neighbours = np.zeros((size, size)), np.empty((4, size), dtype=np.intp)
    for direction, (down, across) in enumerate(STEPS):
        there = np.roll(numbers, (-down, -across), (0, 1))[1:-1, 1:-1][shuffled]
        neighbours[direction] = place[there]
        still = np.flatnonzero((neighbours[direction] == size) & (there < outside))
        alone[still] += toward[direction][np.ix_(cells, there[still])].T
    beside = np.stack([cost[np.ix_(cells, cells)] for cost in toward])
    black = np.indices(shuffled.shape).sum(0)[shuffled] % 2 == 0
    return Costs(alone=alone, beside=beside, neighbours=neighbours, black=black)


def both_ways(seams: Array, shuffled: Mask, axis: int) -> tuple[Array, Array]:
    """``-log P(q is p's next along the axis)``, ``[N, N]``, and ``-log P(q is p's previous)``.

    p's neighbour is one of those patches that can come to lie there. The same is asked of q, and
    averaged.
    """
    grid = np.pad(shuffled, [(1, 1) if i == axis else (0, 0) for i in range(2)])
    behind, ahead = (np.delete(grid, ends, axis) for ends in ([-2, -1], [0, 1]))
    moved = shuffled.ravel()
    possible = (moved[:, None] | moved) & np.outer(shuffled | ahead, shuffled | behind)
    np.fill_diagonal(possible, False)
    both = surprise(torch.from_numpy(seams), torch.from_numpy(possible), UNFORESEEN)
    cost: Array = both.numpy() / 2
    return cost, cost.T
