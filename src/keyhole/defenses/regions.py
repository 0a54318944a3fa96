"""How CSVAR divides an image: regions, their variance, and blocks of two sizes (Chen et al. 2025).

All of it can be computed from the shuffled image as well: shuffling moves pixels only inside their
region and colour plane, so that each region keeps its variance. Defense and attacker share this
module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

EXACT = 2**24
"""Integers below this are exact in float32."""


def region_side(height: int, width: int) -> int:
    """S = 2^ceil(log2(sqrt(max(H, W)))), eq. 1.

    Args:
        height: H, in pixels.
        width: W, in pixels.

    >>> [region_side(side, side) for side in (28, 32, 64, 112, 224)]
    [8, 8, 8, 16, 16]
    """
    bits = (max(height, width) - 1).bit_length()
    return 1 << -(-bits // 2)


@dataclass(frozen=True)
class Zone:
    """A rectangle of ``rows x columns`` regions of one size, ``tall x wide`` pixels each.

    An image has one zone of whole regions. Where its sides are no multiples of S, it also has a
    strip on the right, one at the bottom and a corner. ``fine`` and ``coarse`` are the sides of
    blocks in sensitive and in other regions.
    """

    top: int
    left: int
    rows: int
    columns: int
    tall: int
    wide: int
    fine: int
    coarse: int

    @property
    def regions(self) -> int:
        return self.rows * self.columns

    @property
    def pixels(self) -> int:
        """The number of pixels of a region."""
        return self.tall * self.wide

    def block_grid(self, block: int) -> tuple[int, int]:
        """Rows and columns of blocks in a region."""
        return self.tall // block, self.wide // block

    def crop(self, images: Tensor) -> Tensor:
        """The zone's part of ``images [..., H, W]``, a view."""
        bottom, right = self.top + self.rows * self.tall, self.left + self.columns * self.wide
        return images[..., self.top : bottom, self.left : right]

    def select_regions(self, values: Tensor, side: int) -> Tensor:
        """The zone's part of one value per region, ``[..., all rows, all columns]``; a view."""
        row, column = self.top // side, self.left // side
        return values[..., row : row + self.rows, column : column + self.columns]


@lru_cache(maxsize=256)
def split_into_zones(height: int, width: int, block: int | None = None) -> tuple[Zone, ...]:
    """The zones of an image, with blocks of S/4 and S/2, or of one size ``block`` everywhere.

    In a partial region, the block is the greatest power of two up to that size which divides both
    of the region's sides.

    Args:
        height: Of the image, in pixels.
        width: Of the image, in pixels.
        block: The side of every block, in pixels; None: two sizes.
    """
    side = region_side(height, width)
    nominal = (max(1, side // 4), max(1, side // 2)) if block is None else (block, block)
    zones = []
    for top, rows, tall in split_axis(height, side):
        for left, columns, wide in split_axis(width, side):
            fine, coarse = (find_block_side(tall, wide, most) for most in nominal)
            zones.append(Zone(top, left, rows, columns, tall, wide, fine, coarse))
    return tuple(zones)


def split_axis(length: int, side: int) -> list[tuple[int, int, int]]:
    """Start, count and size of the whole regions along an axis, and of the rest."""
    whole, rest = divmod(length, side)
    found = [(0, whole, side)] if whole else []
    return [*found, (whole * side, 1, rest)] if rest else found


def find_block_side(tall: int, wide: int, most: int) -> int:
    """The greatest power of two that divides both sides, at most ``most``."""
    block = 1
    while block * 2 <= most and tall % (block * 2) == 0 and wide % (block * 2) == 0:
        block *= 2
    return block


def compute_region_variances(images: Tensor) -> Tensor:
    """Region variances, float64 ``[B, rows, columns]``, eq. 2.

    In squared grey levels: floats in [0, 1] are rounded to 8 bits per pixel. Sums are exact in

        RV = 1/C sum_c (n sum x^2 - (sum x)^2) / n^2,

    so that the order of the pixels does not change a bit of it.

    Args:
        images: ``[B, C, H, W]``.
    """
    height, width = images.shape[-2:]
    levels = to_grey_levels(images)
    parts = split_into_zones(height, width)
    totals = [sum_regions(zone, levels).double() for zone in parts]
    levels.square_()
    squares = [sum_regions(zone, levels).double() for zone in parts]
    by_zone = [
        ((zone.pixels * two - one.square()) / zone.pixels**2).mean(1)
        for zone, one, two in zip(parts, totals, squares, strict=True)
    ]
    return join_zones(by_zone, height, width)


def to_grey_levels(images: Tensor) -> Tensor:
    """Whole numbers in a floating type in which sums of their squares over a region are exact."""
    if images.dtype == torch.uint8 and region_side(*images.shape[-2:]) ** 2 * 255**2 < EXACT:
        return images.float()
    if not images.is_floating_point():
        return images.double()
    levels = (images * 255).round()
    greatest = float(levels.abs().max()) if levels.numel() else 0.0
    exact = region_side(*images.shape[-2:]) ** 2 * greatest**2 < EXACT
    return levels.float() if exact else levels.double()


def sum_regions(zone: Zone, values: Tensor) -> Tensor:
    """Sums over each region of a zone, ``[B, C, rows, columns]``."""
    area = zone.crop(values)
    lead = area.shape[:2]
    down = area.reshape(*lead, zone.rows, zone.tall, zone.columns * zone.wide).sum(3)
    return down.view(*lead, zone.rows, zone.columns, zone.wide).sum(4)


def join_zones(by_zone: Sequence[Tensor], height: int, width: int) -> Tensor:
    """Joins the zones' values, one per region, ``[..., rows, columns]`` each, into one tensor."""
    across = len(split_axis(width, region_side(height, width)))
    strips = [torch.cat(list(by_zone[i : i + across]), -1) for i in range(0, len(by_zone), across)]
    return torch.cat(strips, -2)


def find_sensitive_regions(images: Tensor) -> Tensor:
    """Which regions get the finer blocks: above the image's median variance, eq. 3.

    bool ``[B, rows, columns]``; ties are not above.

    Args:
        images: ``[B, C, H, W]``.
    """
    spread = compute_region_variances(images)
    ranked = spread.flatten(1).sort(1).values
    count = ranked.shape[1]
    median = (ranked[:, (count - 1) // 2] + ranked[:, count // 2]) / 2
    return spread > median[:, None, None]
