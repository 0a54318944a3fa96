"""Draws shuffles of blocks inside regions, applies them to a batch of images, and undoes them.

Nothing here loops over images or regions: an image has at most four zones, and the regions of a
zone are moved together.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from keyhole.defenses.regions import Zone, region_side, split_into_zones

Channels = Literal["apart", "mixed", "together"]

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Types by their size in bytes: a row of a block is moved as one word of any type."""
GOLDEN, MIX_1, MIX_2 = -0x61C8864680B583EB, -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15
"""SplitMix64's constants as signed numbers."""
CACHE = 1 << 21
"""Bytes of images that are shuffled at once on a CPU."""


@dataclass(frozen=True)
class Shuffle:
    """Where the blocks of a batch come from: one order per zone.

    ``orders[z] [B, pools, regions, items]``: item i of a pool shows item ``order[i]`` of the
    original. The items are fine blocks, row by row; a pool is a region in one plane (``apart``), in
    all planes (``mixed``: items of the first plane come first), or the same for all (``together``).
    """

    height: int
    width: int
    channels: Channels
    zones: tuple[Zone, ...]
    orders: tuple[Tensor, ...]

    def apply(self, images: Tensor) -> Tensor:
        """``images [B, C, H, W]``, shuffled."""
        return self._move(images, self.orders)

    def undo(self, images: Tensor) -> Tensor:
        """The inverse of :meth:`apply`."""
        return self._move(images, tuple(invert_order(order) for order in self.orders))

    def sources(self, planes: int) -> Tensor:
        """For each pixel of the shuffled image its number in the original, ``[B, C * H * W]``.

        ``images.flatten(1).gather(1, sources)`` is :meth:`apply`, and has a gradient.
        """
        batch, device = len(self.orders[0]), self.orders[0].device
        numbers = torch.arange(planes * self.height * self.width, device=device)
        image = numbers.view(1, planes, self.height, self.width)
        return self.apply(image.expand(batch, -1, -1, -1)).flatten(1)

    def _move(self, images: Tensor, orders: tuple[Tensor, ...]) -> Tensor:
        if len(self.zones) == 1:
            return move_blocks(images, self.zones[0], orders[0], self.channels)
        moved = torch.empty_like(images, memory_format=torch.contiguous_format)
        for zone, order in zip(self.zones, orders, strict=True):
            zone.crop(moved).copy_(move_blocks(zone.crop(images), zone, order, self.channels))
        return moved


def move_blocks(area: Tensor, zone: Zone, order: Tensor, channels: Channels) -> Tensor:
    """A zone's pixels ``[B, C, rows * tall, columns * wide]`` with its blocks in ``order``."""
    word = min(16, zone.fine * area.element_size())
    # Flat and back: an axis of one keeps a stride that does not fit longer words.
    rows = area.contiguous().view(-1).view(area.shape).view(WORDS[word])
    sources = find_word_sources(rows.shape, zone, order, channels)
    return rows.view(-1).index_select(0, sources).view(rows.shape).view(area.dtype)


def find_word_sources(shape: torch.Size, zone: Zone, order: Tensor, channels: Channels) -> Tensor:
    """For each word of a zone ``[B, C, rows * tall, words]`` its place in the original, flat.

    A block's words are addressed by its corner, its row and its place in the row:

        source(plane, region, block, row, word) = corner(plane, region, order(block)) + row + word.
    """
    batch, planes, height, width = shape
    (down, across), block, device = zone.block_grid(zone.fine), zone.fine, order.device
    a_block = width // (zone.columns * across)
    kind = torch.int32 if shape.numel() < 2**31 else torch.int64

    def steps(count: int, size: int, axis: int, axes: int = 8) -> Tensor:
        """0, size, 2 size, ... along one of so many axes."""
        shape = [-1 if i == axis else 1 for i in range(axes)]
        return torch.arange(count, device=device, dtype=kind).mul_(size).view(shape)

    blocks = steps(down, block * width, 1, 3) + steps(across, a_block, 2, 3)
    if channels == "mixed":
        blocks = blocks + steps(planes, height * width, 0, 3)
    corners = look_up(blocks.flatten(), order)
    if channels == "mixed":
        corners = corners.view(batch, zone.regions, planes, -1).transpose(1, 2)
    own = 1 if channels == "mixed" else planes
    corners = corners.reshape(batch, -1, zone.rows, zone.columns, down, across)
    laid = corners.permute(0, 1, 2, 4, 3, 5).contiguous()[:, :, :, :, None, :, :, None]
    regions = steps(zone.rows, zone.tall * width, 2) + steps(zone.columns, across * a_block, 5)
    start = steps(batch, planes * height * width, 0) + steps(own, height * width, 1)
    corner = laid + (start + regions)
    return (corner + (steps(block, width, 4) + steps(a_block, 1, 7))).flatten()


def look_up(table: Tensor, index: Tensor) -> Tensor:
    """``table[index]`` of a table ``[n]``; faster than indexing, and int32 serves as well."""
    return table.index_select(0, index.flatten()).view(index.shape)


def invert_order(order: Tensor) -> Tensor:
    """The inverse of each row's permutation."""
    numbers = torch.arange(order.shape[-1], device=order.device, dtype=order.dtype)
    return torch.empty_like(order).scatter_(-1, order.long(), numbers.expand_as(order))


def count_draws(
    planes: int, height: int, width: int, channels: Channels, block: int | None = None
) -> int:
    """How many random numbers the shuffle of one image takes."""
    own = 1 if channels == "together" else planes
    return own * sum(
        z.regions * z.pixels // z.fine**2 for z in split_into_zones(height, width, block)
    )


def draw_shuffle(
    numbers: Tensor,
    fine: Tensor,
    *,
    planes: int,
    size: tuple[int, int],
    channels: Channels,
    block: int | None = None,
) -> Shuffle:
    """The shuffle of ``size`` images by random ``numbers [B, count_draws]``.

    ``fine`` says which regions have the finer blocks, bool ``[B, rows, columns]``.
    """
    height, width = size
    side = region_side(height, width)
    own = 1 if channels == "together" else planes
    zones = split_into_zones(height, width, block)
    lengths = [own * zone.regions * zone.pixels // zone.fine**2 for zone in zones]
    orders = []
    for zone, of_zone in zip(zones, torch.split(numbers, lengths, 1), strict=True):
        pools = 1 if channels == "mixed" else own
        keys = of_zone.reshape(len(numbers), pools, zone.regions, -1)
        is_fine = zone.select_regions(fine, side).reshape(len(numbers), 1, zone.regions, 1)
        orders.append(draw_order(keys, is_fine, zone, own // pools))
    return Shuffle(height, width, channels, zones, tuple(orders))


def draw_order(keys: Tensor, fine: Tensor, zone: Zone, planes: int) -> Tensor:
    """Uniform orders ``[B, pools, regions, items]`` of fine blocks, or of coarse ones as wholes.

    A coarse block is a square of fine ones that stay beside each other; a pool holds ``planes``.
    """
    finely = order_by_keys(keys)
    if zone.coarse == zone.fine:
        return finely
    ratio = zone.coarse // zone.fine
    (_, across), (big_down, big_across) = zone.block_grid(zone.fine), zone.block_grid(zone.coarse)
    item = torch.arange(keys.shape[-1], device=keys.device)
    row, column = item // across, item % across  # planes follow each other as rows do
    whole = row // ratio * big_across + column // ratio
    inside = row % ratio * across + column % ratio
    big = torch.arange(planes * big_down * big_across, device=keys.device)
    corner = big // big_across * ratio * across + big % big_across * ratio
    chosen = look_up(corner, order_by_keys(keys[..., : len(big)]))
    coarsely = chosen.gather(-1, whole.expand_as(keys)) + inside
    return torch.where(fine, finely, coarsely.int())


def order_by_keys(keys: Tensor) -> Tensor:
    """The order that sorts each row of random int32, int32; rows have at most a few dozen items.

    An item's number takes the place of its key's last bits, so that values can be sorted alone.
    """
    count = keys.shape[-1]
    mask = (1 << (count - 1).bit_length()) - 1
    numbers = torch.arange(count, device=keys.device, dtype=torch.int32)
    marked = keys & ~mask | numbers
    if marked.is_cuda:
        return marked.sort(-1).values & mask
    return torch.from_numpy(np.sort(marked.numpy(), axis=-1)) & mask


def draw_seeded_numbers(seeds: Tensor, count: int) -> Tensor:
    """``count`` random int32 for each of the 64-bit ``seeds [B]``: ``[B, count]``.

    By SplitMix64 (Steele et al. 2014): for training, not for secrets.
    """
    steps = torch.arange(1, (count + 1) // 2 + 1, device=seeds.device)
    state = seeds[:, None] + steps * GOLDEN
    state = (state ^ (state >> 30 & (1 << 34) - 1)) * MIX_1
    state = (state ^ (state >> 27 & (1 << 37) - 1)) * MIX_2
    state = state ^ (state >> 31 & (1 << 33) - 1)
    return state.view(torch.int32)[:, :count]


def draw_keyed_numbers(key: bytes, place: str, count: int) -> Tensor:
    """``count`` random int32 ``[count]`` that only the holder of ``key`` can compute.

    The key and the place (which image, which epoch) are hashed together by HMAC-SHA256, and the
    hash is stretched by SHAKE-256.
    """
    seed = hmac.digest(key, place.encode("utf-8", "surrogateescape"), "sha256")
    stretched = hashlib.shake_256(seed).digest(4 * count)
    return torch.from_numpy(np.frombuffer(stretched, dtype="<i4").astype(np.int32))


def map_chunks(images: Tensor, work: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """``work`` on as many images at a time as fit a processor's cache; on a GPU, on all at once."""
    if not len(images):
        return images.clone()
    if images.is_cuda:
        return work(images, slice(None))
    results = torch.empty_like(images, memory_format=torch.contiguous_format)
    for part in split_for_cache(images):
        results[part] = work(images[part], part)
    return results


def split_for_cache(images: Tensor) -> Iterator[slice]:
    size = max(1, CACHE // (images[0].numel() * images.element_size()))
    for start in range(0, len(images), size):
        yield slice(start, start + size)
