"""Block-wise masks: rectangles of patches until a fraction of the grid is covered (BEiT, MJP)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

TRIES = 10
"""Rectangles tried for one block."""
SMALLEST, LARGEST = 8 / 196, 75 / 196
"""A block's area as a fraction of the grid: 8 to 75 of the papers' 14 x 14 patches."""
MIN_ASPECT = 0.3
"""The smallest ratio of a block's sides."""

Grid = tuple[int, int]


def target_cells(grid: Grid, gamma: float) -> int:
    """Returns how many cells a mask should cover.

    >>> [target_cells((14, 14), gamma) for gamma in (0.1, 0.3, 0.5, 0.7, 0.9)]
    [19, 58, 98, 137, 176]
    """
    return math.floor(grid[0] * grid[1] * gamma + 1e-9)


def block_masks(
    count: int,
    grid: Grid,
    gamma: float,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | None = None,
) -> Tensor:
    """Draws ``count`` masks at once, bool ``[count, rows, columns]``, True where covered.

    Each mask takes block after block: ten rectangles are tried, with area U(smallest, cap) and
    log-uniform ratio of sides, and the first one is added that covers something new but no more
    than ``cap``, the number of cells still missing (and at most the largest block). If all ten
    fail, the mask stays as it is, so some cover a little less than :func:`target_cells`.
    """
    rows, columns = grid
    smallest, largest = SMALLEST * rows * columns, LARGEST * rows * columns
    down = torch.arange(rows, device=device)
    across = torch.arange(columns, device=device)
    masks = torch.zeros(count, rows, columns, device=device)
    missing = torch.full((count,), float(target_cells(grid, gamma)), device=device)
    active = missing > 0
    while bool(active.any()):
        draw = torch.rand(4, count, TRIES, generator=generator, device=device)
        cap = missing.clamp(max=largest)[:, None]
        area = smallest + (cap - smallest) * draw[0]
        ratio = torch.exp((2 * draw[1] - 1) * math.log(1 / MIN_ASPECT))
        if 1 in grid:  # a single row or column: blocks are parts of it
            ratio = 1 / area if rows == 1 else area
        height, width = (area * ratio).sqrt().round(), (area / ratio).sqrt().round()
        top = (draw[2] * (rows - height + 1)).floor()
        left = (draw[3] * (columns - width + 1)).floor()
        tall = inside(down, top, height)
        wide = inside(across, left, width)
        new = ((tall @ (1 - masks)) * wide).sum(-1)
        fits = (height < max(rows, 2)) & (width < max(columns, 2)) & (new > 0) & (new <= cap)
        first = fits.to(torch.uint8).argmax(1)
        added = active & fits.any(1)
        which = torch.arange(count, device=device)
        block = tall[which, first][:, :, None] * wide[which, first][:, None, :]
        masks = torch.where(added[:, None, None], torch.maximum(masks, block), masks)
        missing = missing - new[which, first] * added
        active = added & (missing > 0)
    return masks.bool()


def inside(cells: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """Returns 1 for the ``length`` cells from ``start`` on, else 0: ``[..., cells]``."""
    return ((cells >= start[..., None]) & (cells < (start + length)[..., None])).to(start)
