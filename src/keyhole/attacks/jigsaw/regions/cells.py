"""A shuffled image as regions of 4x4 cells, S/4 pixels per side, and the pieces that lie in them.

A fine block is one piece; a coarse block is a square of four pieces that stay together. Regions at
the border may have fewer cells; the rest of their sixteen are not real and keep pieces that are not
real.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.jigsaw.regions.blocks import find_best_assignment, has_odd_blocks
from keyhole.defenses.regions import region_side, split_into_zones
from keyhole.errors import DoesNotFit

CELLS = 16
"""Cells of a region."""
FORBIDDEN = 1e4
"""Nats: what a piece costs in a cell where it cannot lie."""


@dataclass(frozen=True)
class Cells:
    """Pieces by the cell in which the shuffled image shows them, row by row.

    R and Q count the rows and columns of regions.

    Args:
        pieces: ``[B, C, R, Q, 16, side, side]``.
        coarse: Regions whose blocks are of four cells, bool ``[B, R, Q]``.
        real: Cells that the image has, bool ``[R, Q, 16]``.
    """

    pieces: Tensor
    coarse: Tensor
    real: Tensor

    @property
    def side(self) -> int:
        """The side of a cell, in pixels."""
        return self.pieces.shape[-1]

    @property
    def cells_per_block(self) -> Tensor:
        """The number of cells that a block of each region has, ``[B, R, Q, 1, 1]``."""
        return torch.where(self.coarse, 4, 1)[..., None, None]

    @property
    def forbidden(self) -> Tensor:
        """FORBIDDEN where a piece (last axis) cannot lie in a cell, else 0: ``[B, R, Q, 16, 16]``.

        In a coarse block a piece keeps its quarter.
        """
        real = self.real
        mixed = real[..., :, None] != real[..., None, :]
        quarter = quarter_numbers(real.device)
        turned = self.coarse[..., None, None] & (quarter[:, None] != quarter)
        return torch.where((turned & real[..., None, :]) | mixed, FORBIDDEN, 0.0)

    def sum_over_blocks(self, costs: Tensor) -> Tensor:
        """Replaces costs in coarse regions by those of whole blocks.

        There each entry becomes the sum over the block's four cells and the pieces in them.

        Args:
            costs: Of pieces (last axis) in cells, ``[B, R, Q, 16, 16]``.
        """
        lead = costs.shape[:-2]
        halves = costs.view(*lead, *(2,) * 8)  # block's row, quarter's row, block's column, ...
        whole = torch.einsum("...aibjcidj->...abcd", halves)[
            ..., :, None, :, None, :, None, :, None
        ]
        by_block = whole.expand(*lead, *(2,) * 8).reshape(costs.shape)
        return torch.where(self.coarse[..., None, None], by_block, costs)

    def assign(self, costs: Tensor) -> Tensor:
        """The piece of each cell, ``[B, R, Q, 16]``, at the least total cost; blocks stay whole.

        Args:
            costs: Of pieces (last axis) in cells, ``[B, R, Q, 16, 16]``.
        """
        return find_best_assignment(self.sum_over_blocks(costs) + self.forbidden)

    def cut(self, images: Tensor) -> Tensor:
        """Cuts other images of the same size into pieces.

        Args:
            images: ``[B, C, H, W]``.
        """
        return cut_pieces(images, self.side, tuple(self.real.shape[:2]))


def quarter_numbers(device: torch.device) -> Tensor:
    """Which quarter of its coarse block each cell is, ``[16]``."""
    cell = torch.arange(CELLS, device=device)
    return cell // 4 % 2 * 2 + cell % 2


def build_cells(shuffled: Tensor, fine: Tensor, block: int | None = None) -> Cells:
    """Cuts shuffled images into cells.

    Args:
        shuffled: ``[B, C, H, W]``.
        fine: Which regions have the finer blocks, bool ``[B, rows, columns]``.
        block: The side of all blocks, if they have one size everywhere.
    """
    height, width = shuffled.shape[-2:]
    side = region_side(height, width)
    if side < 4:
        raise DoesNotFit(f"an image of {height}x{width} px has no 4x4 blocks to put in order")
    if block is not None and 4 * block not in (side, 2 * side):
        raise DoesNotFit(
            f"blocks of {block} px are not put in order: in images of {height}x{width} px only "
            f"those of {side // 4} and {side // 2} px are"
        )
    rows, columns = fine.shape[-2:]
    real = torch.zeros(rows, columns, 4, 4, dtype=torch.bool, device=shuffled.device)
    coarse = torch.zeros_like(fine)
    for zone in split_into_zones(height, width, block):
        if has_odd_blocks(zone, side):
            continue
        down, across = zone.block_grid(side // 4)
        row, column = zone.top // side, zone.left // side
        real[row : row + zone.rows, column : column + zone.columns, :down, :across] = True
        is_fine = zone.select_regions(fine, side)
        sizes = torch.where(is_fine, zone.fine, zone.coarse)
        zone.select_regions(coarse, side).copy_(2 * sizes == side)
    pieces = cut_pieces(shuffled, side // 4, (rows, columns))
    return Cells(pieces=pieces, coarse=coarse, real=real.flatten(2))


def cut_pieces(images: Tensor, side: int, regions: tuple[int, ...]) -> Tensor:
    """``images [B, C, H, W]`` as ``[B, C, R, Q, 16, side, side]``, with zeros where they end."""
    rows, columns = regions
    height, width = images.shape[-2:]
    filled = F.pad(images, (0, 4 * side * columns - width, 0, 4 * side * rows - height))
    grid = filled.view(*images.shape[:2], rows, 4, side, columns, 4, side)
    return grid.permute(0, 1, 2, 5, 3, 6, 4, 7).reshape(
        *images.shape[:2], rows, columns, CELLS, side, side
    )


def join_pieces(pieces: Tensor, height: int, width: int) -> Tensor:
    """The inverse of :func:`cut_pieces`."""
    batch, planes, rows, columns, _, side, _ = pieces.shape
    grid = pieces.view(batch, planes, rows, columns, 4, 4, side, side)
    lines = grid.permute(0, 1, 2, 4, 6, 3, 5, 7)
    return lines.reshape(batch, planes, 4 * side * rows, 4 * side * columns)[..., :height, :width]


def reorder_pieces(pieces: Tensor, order: Tensor) -> Tensor:
    """Puts pieces in another order.

    Args:
        pieces: ``[B, C, R, Q, 16, ...]``.
        order: The number of the piece in each cell, ``[B, C, R, Q, 16]``.
    """
    index = order.view(*order.shape, *(1,) * (pieces.ndim - order.ndim))
    return pieces.gather(4, index.expand_as(pieces))


def average_planes(cells: Cells, coloured: Tensor) -> Cells:
    """The cells in grey.

    Args:
        cells: The cells of the shuffled images.
        coloured: Their pieces with matched planes, ``[B, C, R, Q, 16, side, side]``.
    """
    return replace(cells, pieces=coloured.mean(1, keepdim=True))
