"""Puts the blocks of CSVAR's images in order. It never sees the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.jigsaw.belief import TINY
from keyhole.attacks.jigsaw.regions.blocks import (
    find_sources,
    group_regions,
    has_odd_blocks,
    identity_sources,
    take_pixels,
)
from keyhole.attacks.jigsaw.regions.cells import (
    CELLS,
    Cells,
    build_cells,
    join_pieces,
    reorder_pieces,
)
from keyhole.attacks.jigsaw.regions.planes import match_planes
from keyhole.attacks.jigsaw.regions.region_puzzle import SCHEDULES, compute_region_beliefs
from keyhole.attacks.jigsaw.regions.seams import RegionSeamCosts, compute_region_seam_costs
from keyhole.attacks.jigsaw.regions.thumbnails import build_thumbnail
from keyhole.defenses.csvar import Csvar, check_images
from keyhole.defenses.regions import find_sensitive_regions, region_side, split_into_zones
from keyhole.errors import BadValue, DoesNotFit

REGIONS_AT_ONCE = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Regions that are solved together, by kind of device; others count as cuda."""
ALIKE = 1e-3
"""Blocks that differ by less than this look the same."""


Adviser = Callable[[Cells, Tensor, RegionSeamCosts, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Given cells, their pieces in colour ``[B, C, R, Q, 16, side, side]``, the seams and the beliefs
``[B, R, Q, 16, 16]``: returns the order ``[B, R, Q, 16]``, new beliefs, and those from which the
confidence is computed."""


@dataclass(frozen=True)
class Solution:
    """Images put in order, and how sure the attacker is of them.

    Args:
        images: The blocks of the shuffled images in the order found, ``[B, C, H, W]``.
        expected: The mean of all arrangements by the attacker's beliefs, ``[B, C, H, W]``: blurred
            where it does not know.
        sources: For each pixel its number in the shuffled image, int64 ``[B, C, H, W]``.
        confidence: The share of blocks that the attacker expects to be right, ``[B]``.
    """

    images: Tensor
    expected: Tensor
    sources: Tensor
    confidence: Tensor


def solve(
    shuffled: Tensor,
    *,
    defense: Csvar | None = None,
    adviser: Adviser | None = None,
    fine: Tensor | None = None,
) -> Solution:
    """Puts the blocks of shuffled images in order.

    Args:
        shuffled: ``[B, C, H, W]``, floats in [0, 1].
        defense: The defense as the attacker knows it.
        adviser: Decides on the order, given what the seams say.
        fine: Which regions have the finer blocks, bool ``[B, rows, columns]``. By default the
            shuffled image tells, and noise on it may mislead.

    >>> solve(Csvar().on_images(torch.rand(2, 3, 32, 32))).images.shape
    torch.Size([2, 3, 32, 32])
    """
    defense = defense or Csvar()
    check_images(shuffled)
    if not shuffled.is_floating_point() or not bool(shuffled.isfinite().all()):
        raise BadValue("solve takes finite floats in [0, 1]")
    if defense.channels == "mixed":
        raise DoesNotFit("blocks that changed planes (channels='mixed') are not put in order")
    flags = find_sensitive_regions(shuffled) if fine is None else fine
    limit = REGIONS_AT_ONCE.get(shuffled.device.type, REGIONS_AT_ONCE["cuda"])
    step = max(1, limit // flags[0].numel()) if len(flags) else 1
    chunks = [
        solve_chunk(shuffled[i : i + step], flags[i : i + step], defense, adviser)
        for i in range(0, max(1, len(shuffled)), step)
    ]
    return Solution(
        images=torch.cat([chunk.images for chunk in chunks]),
        expected=torch.cat([chunk.expected for chunk in chunks]),
        sources=torch.cat([chunk.sources for chunk in chunks]),
        confidence=torch.cat([chunk.confidence for chunk in chunks]),
    )


def solve_chunk(
    shuffled: Tensor, fine: Tensor, defense: Csvar, adviser: Adviser | None
) -> Solution:
    """:func:`solve` for as many images as fit."""
    height, width = shuffled.shape[-2:]
    cells = build_cells(shuffled, fine, defense.block)
    numbers = torch.arange(CELLS, device=shuffled.device)
    partners = numbers.expand(cells.pieces.shape[:5])
    if defense.channels == "apart" and shuffled.shape[1] > 1:
        partners = torch.where(cells.real, match_planes(cells), numbers)
    coloured = reorder_pieces(cells.pieces, partners)
    seams = compute_region_seam_costs(cells, coloured)
    order, beliefs = find_best_order(seams, cells)
    trusted = beliefs
    if adviser is not None:
        order, beliefs, trusted = adviser(cells, coloured, seams, beliefs)
    order = torch.where(cells.real, order, numbers)

    own_places = reorder_pieces(cells.cut(identity_sources(shuffled)), partners)
    places = reorder_pieces(own_places, order[:, None].expand_as(partners))
    sources = join_pieces(places, height, width)
    sources = order_odd_strips(shuffled, sources, fine, defense.block)
    images = take_pixels(shuffled, sources)
    mean = (beliefs[:, None] @ coloured.flatten(5)).view_as(coloured)
    real = cells.real[..., None, None].expand(mean.shape[2:])
    return Solution(
        images=images,
        expected=join_pieces(torch.where(real, mean, cells.cut(images)), height, width),
        sources=sources,
        confidence=compute_confidence(coloured, order, trusted, cells),
    )


def find_best_order(seams: RegionSeamCosts, cells: Cells) -> tuple[Tensor, Tensor]:
    """The order of least cost found, ``[B, R, Q, 16]``, and the beliefs that led to it."""
    beliefs = [compute_region_beliefs(seams, cells, schedule) for schedule in SCHEDULES]
    orders = [choose_order(each, cells) for each in beliefs]
    best = torch.stack([seams.total(order) for order in orders]).argmin(0)
    each = torch.arange(len(best), device=best.device)
    return torch.stack(orders)[best, each], torch.stack(beliefs)[best, each]


def choose_order(beliefs: Tensor, cells: Cells) -> Tensor:
    """The most likely order ``[B, R, Q, 16]``."""
    return cells.assign(-(beliefs + TINY).log())


def compute_confidence(coloured: Tensor, order: Tensor, beliefs: Tensor, cells: Cells) -> Tensor:
    """The mean belief ``[B]`` in what cells show; pieces that look alike count for each other."""
    looks = coloured.movedim(1, 4).flatten(4)
    alike = torch.cdist(looks, looks, p=float("inf")) < ALIKE
    shown = alike.gather(-2, order[..., None].expand_as(alike))
    certainty = (beliefs * shown).sum(-1).clamp_max(1) * cells.real
    return certainty.flatten(1).sum(1) / cells.real.sum().clamp_min(1)


def order_odd_strips(shuffled: Tensor, sources: Tensor, fine: Tensor, block: int | None) -> Tensor:
    """``sources`` with the strips of odd blocks put in order too.

    Where an image's side leaves a rest that no block of S/4 divides, blocks are too small to be
    judged by seams. They are laid so that the strip continues the image beside it.
    """
    height, width = shuffled.shape[-2:]
    side = region_side(height, width)
    if not any(has_odd_blocks(zone, side) for zone in split_into_zones(height, width, block)):
        return sources
    images = take_pixels(shuffled, sources)
    groups = group_regions(images, fine, block, odd_only=True)
    return take_pixels(sources, find_sources(images, extend_into_strips(images, side), groups))


def extend_into_strips(images: Tensor, side: int) -> Tensor:
    """Overwrites the odd strips of images by the last pixels before them."""
    height, width = (length_without_strip(length, side) for length in images.shape[-2:])
    if not height or not width:
        return build_thumbnail(images)
    rest = (0, images.shape[-1] - width, 0, images.shape[-2] - height)
    return F.pad(images[..., :height, :width], rest, mode="replicate")


def length_without_strip(length: int, side: int) -> int:
    """How much of an axis has blocks of S/4 and above."""
    rest = length % side
    return length if rest % (side // 4) == 0 else length - rest
