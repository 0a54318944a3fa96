"""The regions of shuffled images as one puzzle: which cells adjoin, and at what cost."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import FROM_ABOVE, FROM_LEFT, Link, Puzzle, beliefs
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells
from keyhole.attacks.jigsaw.regions.seams import Seams


class RegionPuzzle(Puzzle):
    """The cells ``[B, R, Q, 4, 4]`` of all regions; four cells of a coarse block speak as one.

    ``alone``: further costs of items in cells, ``[B, R, Q, 16, 16]``.
    """

    def __init__(self, seams: Seams, cells: Cells, alone: Tensor | None = None) -> None:
        self.cells, self.alone, self.cannot = cells, alone, cells.cannot
        self.silence = self.cannot.new_zeros(4, *self.cannot.shape[:-2], 4, 4, CELLS)
        self.links = region_links(seams, cells)

    def logits(self, heard: Tensor, temperature: float) -> Tensor:
        own = heard.flatten(-3, -2)
        if self.alone is not None:
            own = own - self.alone / temperature
        return self.cells.as_blocks(own) - self.cannot


def region_links(seams: Seams, cells: Cells) -> tuple[Link, ...]:
    """Inside regions, then from each region to the next, on cells ``[B, R, Q, 4, 4]``."""
    every, head, tail = slice(None), slice(None, -1), slice(1, None)
    first, last = slice(None, 1), slice(3, None)
    even = torch.arange(3, device=cells.coarse.device) % 2 == 0
    open_ = ~(cells.coarse[..., None] & even)  # inside a coarse block all is known
    across, down = open_[..., None, :, None], open_[..., :, None, None]
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


def region_beliefs(
    seams: Seams, cells: Cells, temperatures: Sequence[float], alone: Tensor | None = None
) -> Tensor:
    """P(item in cell), ``[B, R, Q, 16 cells, 16 items]``; ``alone`` as in :class:`RegionPuzzle`."""
    return beliefs(RegionPuzzle(seams, cells, alone), temperatures)
