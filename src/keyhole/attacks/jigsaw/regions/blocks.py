"""The blocks of every region, and their best assignment to places whose content is expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from keyhole.defenses.regions import Zone, region_side, split_into_zones


@dataclass(frozen=True)
class RegionGroup:
    """Regions of one zone whose blocks have one size, over all images and planes of a batch.

    Args:
        zone: Where the regions are.
        block: The side of their blocks, in pixels.
        members: Which regions of the zone these are, bool ``[B, 1, regions]``: the same in all
            planes.
    """

    zone: Zone
    block: int
    members: Tensor

    def cut(self, images: Tensor) -> Tensor:
        """The blocks of ``images [B, C, H, W]``, row by row: ``[regions, blocks, pixels]``."""
        blocks = self._cut_zone(images)
        return blocks[self.members.expand(blocks.shape[:3])]

    def paste(self, images: Tensor, blocks: Tensor) -> None:
        """Puts ``blocks [regions, blocks, pixels]`` where :meth:`cut` took them."""
        zone, side = self.zone, self.block
        in_zone = self._cut_zone(images)
        in_zone[self.members.expand(in_zone.shape[:3])] = blocks
        (down, across), lead = zone.block_grid(side), in_zone.shape[:2]
        grid = in_zone.view(*lead, zone.rows, zone.columns, down, across, side, side)
        rows = grid.permute(0, 1, 2, 4, 6, 3, 5, 7)
        zone.crop(images).copy_(rows.reshape(*lead, zone.rows * zone.tall, -1))

    def _cut_zone(self, images: Tensor) -> Tensor:
        """The blocks of the whole zone, ``[B, C, regions, blocks, pixels]``, a copy."""
        zone, side = self.zone, self.block
        (down, across), area = zone.block_grid(side), zone.crop(images)
        lead = area.shape[:2]
        rows = area.reshape(*lead, zone.rows, down, side, zone.columns, across, side)
        blocks = rows.permute(0, 1, 2, 5, 3, 6, 4, 7).clone(memory_format=torch.contiguous_format)
        return blocks.view(*lead, zone.regions, down * across, side * side)


def group_regions(
    images: Tensor, fine: Tensor, block: int | None = None, odd_only: bool = False
) -> Iterator[RegionGroup]:
    """All regions of a batch; ``fine [B, rows, columns]`` says which have the finer blocks.

    ``odd_only``: only the zones with odd blocks (see :func:`has_odd_blocks`).
    """
    height, width = images.shape[-2:]
    side = region_side(height, width)
    for zone in split_into_zones(height, width, block):
        if odd_only and not has_odd_blocks(zone, side):
            continue
        is_fine = zone.select_regions(fine, side).reshape(len(images), 1, zone.regions)
        if zone.fine == zone.coarse:
            yield RegionGroup(zone, zone.fine, torch.ones_like(is_fine))
        else:
            yield RegionGroup(zone, zone.fine, is_fine)
            yield RegionGroup(zone, zone.coarse, ~is_fine)


def has_odd_blocks(zone: Zone, side: int) -> bool:
    """Whether a zone's blocks are neither cells of S/4 pixels nor squares of four such cells."""
    return not {4 * zone.fine, 4 * zone.coarse} <= {side, 2 * side}


def find_best_assignment(costs: Tensor) -> Tensor:
    """The assignment of least cost, ``[..., n]`` by row, of each matrix in ``costs [..., n, n]``.

    The Hungarian method in C takes ten microseconds for 16 blocks; no batched one is as fast.
    """
    flat = costs.detach().reshape(-1, *costs.shape[-2:]).cpu().double().numpy()
    columns = np.empty(flat.shape[:2], dtype=np.int64)
    for i, cost in enumerate(flat):
        columns[i] = linear_sum_assignment(cost)[1]
    return torch.from_numpy(columns).view(costs.shape[:-1]).to(costs.device)


def match_blocks(wanted: Tensor, blocks: Tensor) -> Tensor:
    """Which block goes where so that the sum of squared distances is least, ``[regions, n]``.

    Both are ``[regions, n, pixels]``. Blocks of one pixel are matched by rank, which is best.
    """
    if wanted.shape[-1] == 1:
        ranks = wanted[..., 0].argsort(-1).argsort(-1)
        return blocks[..., 0].argsort(-1).gather(-1, ranks)
    return find_best_assignment(torch.cdist(wanted, blocks).square())


def find_sources(shuffled: Tensor, like: Tensor, groups: Iterable[RegionGroup]) -> Tensor:
    """For each pixel its source in ``shuffled``, so that the regions look most like ``like``.

    int64 ``[B, C, H, W]``; a source is a pixel's number in its own image.
    """
    sources = identity_sources(shuffled)
    for group in groups:
        order = match_blocks(group.cut(like), group.cut(shuffled))
        blocks = group.cut(sources)
        group.paste(sources, blocks.gather(1, order[..., None].expand_as(blocks)))
    return sources


def identity_sources(images: Tensor) -> Tensor:
    """The sources that leave every pixel where it is."""
    numbers = torch.arange(images.shape[1:].numel(), device=images.device)
    return numbers.view(images.shape[1:]).repeat(len(images), 1, 1, 1)


def take_pixels(images: Tensor, sources: Tensor) -> Tensor:
    """The pixels of ``images`` that ``sources`` names, both ``[B, C, H, W]``."""
    return images.flatten(1).gather(1, sources.flatten(1)).view(images.shape)
