"""A shuffled image as regions of 4x4 cells, S/4 pixels a side, and the items that lie in them.

A coarse block is a square of four items that stay together. Regions at the border may have fewer
cells; the others of their sixteen are not real and keep items that are not real.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.jigsaw.regions.blocks import is_odd
from keyhole.defenses.regions import region_side, split_into_zones
from keyhole.errors import DoesNotFit

CELLS = 16
NEVER = 1e4
"""Nats: what an item costs in a cell where it cannot lie."""


@dataclass(frozen=True)
class Cells:
    """Items by the cell in which the shuffled image shows them, row by row.

    ``coarse [B, R, Q]``: regions whose blocks are of four cells; ``real [R, Q, 16]``: cells that
    the image has. R and Q count the rows and columns of regions.
    """

    items: Tensor
    """``[B, C, R, Q, 16, side, side]``"""
    coarse: Tensor
    real: Tensor

    @property
    def side(self) -> int:
        """A cell's, in pixels."""
        return self.items.shape[-1]

    @property
    def cannot(self) -> Tensor:
        """NEVER where an item (last axis) cannot lie in a cell, else 0: ``[B, R, Q, 16, 16]``.

        In a coarse block an item keeps its quarter.
        """
        real = self.real
        mixed = real[..., :, None] != real[..., None, :]
        quarter = quarters(real.device)
        turned = self.coarse[..., None, None] & (quarter[:, None] != quarter)
        return torch.where((turned & real[..., None, :]) | mixed, NEVER, 0.0)

    def as_blocks(self, costs: Tensor) -> Tensor:
        """``costs [B, R, Q, 16, 16]`` of items in cells; in coarse regions those of whole blocks.

        There each entry becomes the sum over the block's four cells and the items in them.
        """
        lead = costs.shape[:-2]
        halves = costs.view(*lead, *(2,) * 8)  # block's row, quarter's row, block's column, ...
        whole = torch.einsum("...aibjcidj->...abcd", halves)[
            ..., :, None, :, None, :, None, :, None
        ]
        alike = whole.expand(*lead, *(2,) * 8).reshape(costs.shape)
        return torch.where(self.coarse[..., None, None], alike, costs)

    def of(self, images: Tensor) -> Tensor:
        """Other images of the same size, cut alike."""
        return cut(images, self.side, tuple(self.real.shape[:2]))


def quarters(device: torch.device) -> Tensor:
    """Which quarter of its coarse block each cell is, ``[16]``."""
    cell = torch.arange(CELLS, device=device)
    return cell // 4 % 2 * 2 + cell % 2


def cells(shuffled: Tensor, fine: Tensor, block: int | None = None) -> Cells:
    """The cells of ``shuffled [B, C, H, W]``.

    ``fine [B, rows, columns]`` says which regions have the finer blocks.
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
        if is_odd(zone, side):
            continue
        down, across = zone.block_grid(side // 4)
        row, column = zone.top // side, zone.left // side
        real[row : row + zone.rows, column : column + zone.columns, :down, :across] = True
        is_fine = zone.select_regions(fine, side)
        sizes = torch.where(is_fine, zone.fine, zone.coarse)
        zone.select_regions(coarse, side).copy_(2 * sizes == side)
    items = cut(shuffled, side // 4, (rows, columns))
    return Cells(items=items, coarse=coarse, real=real.flatten(2))


def cut(images: Tensor, side: int, regions: tuple[int, ...]) -> Tensor:
    """``images [B, C, H, W]`` as ``[B, C, R, Q, 16, side, side]``, with zeros where they end."""
    rows, columns = regions
    height, width = images.shape[-2:]
    filled = F.pad(images, (0, 4 * side * columns - width, 0, 4 * side * rows - height))
    parts = filled.view(*images.shape[:2], rows, 4, side, columns, 4, side)
    return parts.permute(0, 1, 2, 5, 3, 6, 4, 7).reshape(
        *images.shape[:2], rows, columns, CELLS, side, side
    )


def paste(items: Tensor, height: int, width: int) -> Tensor:
    """The inverse of :func:`cut`."""
    batch, planes, rows, columns, _, side, _ = items.shape
    parts = items.view(batch, planes, rows, columns, 4, 4, side, side)
    laid = parts.permute(0, 1, 2, 4, 6, 3, 5, 7)
    return laid.reshape(batch, planes, 4 * side * rows, 4 * side * columns)[..., :height, :width]


def picked(items: Tensor, order: Tensor) -> Tensor:
    """``items [B, C, R, Q, 16, ...]`` in the order ``[B, C, R, Q, 16]``, or one for all planes."""
    index = order.view(*order.shape, *(1,) * (items.ndim - order.ndim))
    return items.gather(4, index.expand_as(items))
