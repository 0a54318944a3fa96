"""The blocks of every region, and their best assignment to places where something is expected."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from keyhole.defenses.regions import Zone, region_side, split_into_zones


@dataclass(frozen=True)
class Pools:
    """Regions of one zone whose blocks have one size, over all images and planes of a batch."""

    zone: Zone
    block: int
    chosen: Tensor
    """Which regions these are, bool ``[B, 1, regions]``: the same in all planes."""

    def cut(self, images: Tensor) -> Tensor:
        """The blocks of ``images [B, C, H, W]``, row by row: ``[pools, blocks, pixels]``."""
        every = self._every(images)
        return every[self.chosen.expand(every.shape[:3])]

    def paste(self, images: Tensor, blocks: Tensor) -> None:
        """Puts ``blocks [pools, blocks, pixels]`` where :meth:`cut` took them."""
        zone, side = self.zone, self.block
        every = self._every(images)
        every[self.chosen.expand(every.shape[:3])] = blocks
        (down, across), lead = zone.block_grid(side), every.shape[:2]
        laid = every.view(*lead, zone.rows, zone.columns, down, across, side, side)
        laid = laid.permute(0, 1, 2, 4, 6, 3, 5, 7)
        zone.crop(images).copy_(laid.reshape(*lead, zone.rows * zone.tall, -1))

    def _every(self, images: Tensor) -> Tensor:
        """``[B, C, regions, blocks, pixels]``, a copy."""
        zone, side = self.zone, self.block
        (down, across), area = zone.block_grid(side), zone.crop(images)
        lead = area.shape[:2]
        cut = area.reshape(*lead, zone.rows, down, side, zone.columns, across, side)
        ordered = cut.permute(0, 1, 2, 5, 3, 6, 4, 7).clone(memory_format=torch.contiguous_format)
        return ordered.view(*lead, zone.regions, down * across, side * side)


def pools(
    images: Tensor, fine: Tensor, block: int | None = None, odd_only: bool = False
) -> Iterator[Pools]:
    """All pools of a batch, ``fine [B, rows, columns]`` saying which regions have finer blocks.

    ``odd_only``: those of zones whose blocks are smaller than S/4.
    """
    height, width = images.shape[-2:]
    side = region_side(height, width)
    for zone in split_into_zones(height, width, block):
        if odd_only and not is_odd(zone, side):
            continue
        is_fine = zone.select_regions(fine, side).reshape(len(images), 1, zone.regions)
        if zone.fine == zone.coarse:
            yield Pools(zone, zone.fine, torch.ones_like(is_fine))
        else:
            yield Pools(zone, zone.fine, is_fine)
            yield Pools(zone, zone.coarse, ~is_fine)


def is_odd(zone: Zone, side: int) -> bool:
    """Whether a zone's blocks are no cells of S/4 pixels, or squares of four such cells."""
    return not {4 * zone.fine, 4 * zone.coarse} <= {side, 2 * side}


def least(costs: Tensor) -> Tensor:
    """The assignment of least cost, ``[..., n]`` by row, of each matrix in ``costs [..., n, n]``.

    The Hungarian method in C takes ten microseconds for 16 blocks; no batched one is as fast.
    """
    flat = costs.detach().reshape(-1, *costs.shape[-2:]).cpu().double().numpy()
    found = np.empty(flat.shape[:2], dtype=np.int64)
    for i, cost in enumerate(flat):
        found[i] = linear_sum_assignment(cost)[1]
    return torch.from_numpy(found).view(costs.shape[:-1]).to(costs.device)


def nearest(wanted: Tensor, blocks: Tensor) -> Tensor:
    """Which block goes where so that squared distances are least, ``[pools, n]``.

    Both are ``[pools, n, pixels]``. Blocks of one pixel are ranked: that is their best assignment.
    """
    if wanted.shape[-1] == 1:
        ranks = wanted[..., 0].argsort(-1).argsort(-1)
        return blocks[..., 0].argsort(-1).gather(-1, ranks)
    return least(torch.cdist(wanted, blocks).square())


def by_content(shuffled: Tensor, like: Tensor, among: Iterable[Pools]) -> Tensor:
    """For each pixel its source in ``shuffled``, so that the pools look most like ``like``.

    int64 ``[B, C, H, W]``; a source is a pixel's number in its own image.
    """
    sources = in_place(shuffled)
    for pool in among:
        order = nearest(pool.cut(like), pool.cut(shuffled))
        moved = pool.cut(sources)
        pool.paste(sources, moved.gather(1, order[..., None].expand_as(moved)))
    return sources


def in_place(images: Tensor) -> Tensor:
    """The sources that leave every pixel where it is."""
    numbers = torch.arange(images.shape[1:].numel(), device=images.device)
    return numbers.view(images.shape[1:]).repeat(len(images), 1, 1, 1)


def taken(images: Tensor, sources: Tensor) -> Tensor:
    """The pixels of ``images`` that ``sources`` names, both ``[B, C, H, W]``."""
    return images.flatten(1).gather(1, sources.flatten(1)).view(images.shape)
