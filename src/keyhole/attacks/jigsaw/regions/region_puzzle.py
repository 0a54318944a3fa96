"""The regions of shuffled images as one puzzle: which cells adjoin, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import FROM_ABOVE, FROM_LEFT, Link, Puzzle, compute_beliefs
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells
from keyhole.attacks.jigsaw.regions.seams import RegionSeamCosts

ROUNDS = 40
SCHEDULES: tuple[list[float], ...] = tuple(
    np.geomspace(first, last, ROUNDS).tolist()
    for first, last in ((2.0, 0.5), (4.0, 0.3), (0.4, 0.4))
)
"""Temperatures of the rounds, from the first to the last. None is the best for all images."""


class RegionPuzzle(Puzzle):
    """The cells ``[B, R, Q, 4, 4]`` of all regions; the four cells of a coarse block act as one.

    ``unary``: further costs of pieces in cells, ``[B, R, Q, 16, 16]``.
    """

    def __init__(self, seams: RegionSeamCosts, cells: Cells, unary: Tensor | None = None) -> None:
        self.cells, self.unary, self.forbidden = cells, unary, cells.forbidden
        self.no_messages = self.forbidden.new_zeros(4, *self.forbidden.shape[:-2], 4, 4, CELLS)
        self.links = build_links(seams, cells)

    def logits(self, messages: Tensor, temperature: float) -> Tensor:
        logits = messages.flatten(-3, -2)
        if self.unary is not None:
            logits = logits - self.unary / temperature
        return self.cells.sum_over_blocks(logits) - self.forbidden


def build_links(seams: RegionSeamCosts, cells: Cells) -> tuple[Link, ...]:
    """Inside regions, then from each region to the next, on cells ``[B, R, Q, 4, 4]``."""
    every, head, tail = slice(None), slice(None, -1), slice(1, None)
    first, last = slice(None, 1), slice(3, None)
    even = torch.arange(3, device=cells.coarse.device) % 2 == 0
    informative = ~(cells.coarse[..., None] & even)  # inside a coarse block all is known
    across, down = informative[..., None, :, None], informative[..., :, None, None]
    return (
        Link(FROM_LEFT, (..., head, every), (..., tail, every), seams.right, across),
        Link(FROM_ABOVE, (..., head, every, every), (..., tail, every, every), seams.below, down),
        Link(
            FROM_LEFT,
            (every, every, head, every, last),
            (every, every, tail, every, first),
            seams.next_right,
        ),
        Link(
            FROM_ABOVE,
            (every, head, every, last),
            (every, tail, every, first),
            seams.next_below,
        ),
    )


def compute_region_beliefs(
    seams: RegionSeamCosts,
    cells: Cells,
    temperatures: Sequence[float] = SCHEDULES[0],
    unary: Tensor | None = None,
) -> Tensor:
    """P(piece in cell), ``[B, R, Q, 16 cells, 16 pieces]``, by belief propagation.

    Args:
        seams: The costs of neighbours.
        cells: The cells of the shuffled images.
        temperatures: One per round of messages.
        unary: Further costs of pieces in cells, ``[B, R, Q, 16, 16]``.
    """
    return compute_beliefs(RegionPuzzle(seams, cells, unary), temperatures)
