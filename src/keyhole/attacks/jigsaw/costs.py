"""What an arrangement costs: a sum over the shuffled cells, and over pairs of them that adjoin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from keyhole.attacks.jigsaw.belief import compute_surprise
from keyhole.attacks.jigsaw.seams import Array, SeamCosts

Indices = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

DIRECTIONS = ((0, 1), (0, -1), (1, 0), (-1, 0))
"""Right, left, below, above, as (rows, columns); the opposite of direction d is ``d ^ 1``."""

OUTLIER_SHARE = 0.1
"""The share of true seams that the image's statistics do not predict, such as an object's edge."""


@dataclass(frozen=True)
class ArrangementCosts:
    """Costs in nats of m shuffled cells and the m patches found in them, both in the grid's order.

    An arrangement is a permutation ``[m]``: cell i shows patch ``arrangement[i]``.

    Args:
        unary: ``[m, m]``: patch p (column) in cell i (row), beside the neighbours that never moved.
        pairwise: ``[4, m, m]``: patch p (row) with patch q (column) as its neighbour in
            direction d.
        neighbours: ``[4, m]``: the cell that adjoins in direction d; m where there is none or it
            never moved.
        black: ``[m]``: the cells of one colour of the chessboard, none of which adjoin.
    """

    unary: Array
    pairwise: Array
    neighbours: Indices
    black: Mask

    @property
    def size(self) -> int:
        """The number of shuffled cells."""
        return len(self.unary)

    def total(self, arrangement: Indices) -> float:
        """Minus the log-probability of all seams of shuffled cells, each counted once."""
        total = self.unary[np.arange(self.size), arrangement].sum()
        for direction in (0, 2):
            here = np.flatnonzero(self.neighbours[direction] < self.size)
            there = self.neighbours[direction, here]
            total += self.pairwise[direction, arrangement[here], arrangement[there]].sum()
        return float(total)

    def conditional(self, arrangement: Indices) -> Array:
        """The cost ``[m, m]`` of patch p in cell i while its neighbours stay as arranged."""
        total = self.unary.copy()
        for direction in range(4):
            here = np.flatnonzero(self.neighbours[direction] < self.size)
            there = arrangement[self.neighbours[direction, here]]
            total[here] += self.pairwise[direction].T[there]
        return total


def compute_arrangement_costs(seams: SeamCosts, shuffled: Mask) -> ArrangementCosts:
    """The costs in the cells that are ``shuffled [gh, gw]``, all others being in their places."""
    by_direction = [
        *compute_pairwise_costs(seams.right, shuffled, 1),
        *compute_pairwise_costs(seams.below, shuffled, 0),
    ]
    cells = np.flatnonzero(shuffled)
    size, outside = len(cells), shuffled.size
    numbers = np.pad(np.arange(outside).reshape(shuffled.shape), 1, constant_values=outside)
    place = np.full(outside + 1, size)
    place[cells] = np.arange(size)
    unary, neighbours = np.zeros((size, size)), np.empty((4, size), dtype=np.intp)
    for direction, (down, across) in enumerate(DIRECTIONS):
        there = np.roll(numbers, (-down, -across), (0, 1))[1:-1, 1:-1][shuffled]
        neighbours[direction] = place[there]
        fixed = np.flatnonzero((neighbours[direction] == size) & (there < outside))
        unary[fixed] += by_direction[direction][np.ix_(cells, there[fixed])].T
    pairwise = np.stack([cost[np.ix_(cells, cells)] for cost in by_direction])
    black = np.indices(shuffled.shape).sum(0)[shuffled] % 2 == 0
    return ArrangementCosts(unary=unary, pairwise=pairwise, neighbours=neighbours, black=black)


def compute_pairwise_costs(seams: Array, shuffled: Mask, axis: int) -> tuple[Array, Array]:
    """``-log P(q follows p along the axis)``, ``[N, N]``, and ``-log P(q precedes p)``.

    The neighbour of p is one of those patches that can come to lie there. The same is asked of q,
    and averaged.
    """
    grid = np.pad(shuffled, [(1, 1) if i == axis else (0, 0) for i in range(2)])
    behind, ahead = (np.delete(grid, ends, axis) for ends in ([-2, -1], [0, 1]))
    moved = shuffled.ravel()
    possible = (moved[:, None] | moved) & np.outer(shuffled | ahead, shuffled | behind)
    np.fill_diagonal(possible, False)
    both = compute_surprise(torch.from_numpy(seams), torch.from_numpy(possible), OUTLIER_SHARE)
    cost: Array = both.numpy() / 2
    return cost, cost.T
