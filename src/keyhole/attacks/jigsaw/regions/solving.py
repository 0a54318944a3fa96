"""Puts the blocks of CSVAR's images in order. It never sees the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.jigsaw.belief import TINY
from keyhole.attacks.jigsaw.regions.blocks import (
    by_content,
    in_place,
    is_odd,
    least,
    pools,
    taken,
)
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells, cells, paste, picked
from keyhole.attacks.jigsaw.regions.links import region_beliefs
from keyhole.attacks.jigsaw.regions.planes import matched
from keyhole.attacks.jigsaw.regions.seams import Seams, seams
from keyhole.attacks.jigsaw.regions.thumbnails import thumbnail
from keyhole.defenses.csvar import Csvar, check_images
from keyhole.defenses.regions import find_sensitive_regions, region_side, split_into_zones
from keyhole.errors import BadValue, DoesNotFit

SCHEDULES = ((2.0, 0.5), (4.0, 0.3), (0.4, 0.4))
"""First and last temperature of the beliefs. None is the best for all images: the arrangement
whose seams cost least is kept."""
ROUNDS = 40
AT_ONCE = {"cpu": 1 << 10, "cuda": 1 << 16}
"""Regions that are solved together, by kind of device; others count as cuda."""
ALIKE = 1e-3
"""Blocks that differ by less than this are the same to anyone who looks."""


Adviser = Callable[[Cells, Tensor, Seams, Tensor], tuple[Tensor, Tensor, Tensor]]
"""Of cells, their items in colour ``[B, C, R, Q, 16, side, side]``, the seams and the beliefs
``[B, R, Q, 16, 16]``: the order ``[B, R, Q, 16]``, new beliefs, and those to be confident by."""


@dataclass(frozen=True)
class Solved:
    """Images ``[B, C, H, W]`` put in order, and what the attacker itself thinks of them."""

    images: Tensor
    """The shuffled images' own blocks, in the order found."""
    expected: Tensor
    """The mean of all arrangements by the attacker's beliefs: blurred where it does not know."""
    sources: Tensor
    """For each pixel its number in the shuffled image, int64 ``[B, C, H, W]``."""
    confidence: Tensor
    """``[B]``: the share of blocks that the attacker expects to be right."""


def solve(
    shuffled: Tensor,
    *,
    defense: Csvar | None = None,
    adviser: Adviser | None = None,
    fine: Tensor | None = None,
) -> Solved:
    """Puts the blocks of ``shuffled [B, C, H, W]``, floats in [0, 1], in order.

    ``defense``: as the attacker knows it. ``adviser``: who has the last word on the order.
    ``fine``: which regions have the finer blocks, bool ``[B, rows, columns]``; by default the
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
    limit = AT_ONCE.get(shuffled.device.type, AT_ONCE["cuda"])
    step = max(1, limit // flags[0].numel()) if len(flags) else 1
    parts = [
        solve_some(shuffled[i : i + step], flags[i : i + step], defense, adviser)
        for i in range(0, max(1, len(shuffled)), step)
    ]
    return Solved(
        images=torch.cat([part.images for part in parts]),
        expected=torch.cat([part.expected for part in parts]),
        sources=torch.cat([part.sources for part in parts]),
        confidence=torch.cat([part.confidence for part in parts]),
    )


def solve_some(shuffled: Tensor, fine: Tensor, defense: Csvar, adviser: Adviser | None) -> Solved:
    """:func:`solve` of so many images as fit."""
    height, width = shuffled.shape[-2:]
    parts = cells(shuffled, fine, defense.block)
    numbers = torch.arange(CELLS, device=shuffled.device)
    partners = numbers.expand(parts.items.shape[:5])
    if defense.channels == "apart" and shuffled.shape[1] > 1:
        partners = torch.where(parts.real, matched(parts), numbers)
    coloured = picked(parts.items, partners)
    costs = seams(parts, coloured)
    order, belief = arranged(costs, parts)
    sure = belief
    if adviser is not None:
        order, belief, sure = adviser(parts, coloured, costs, belief)
    order = torch.where(parts.real, order, numbers)

    places = picked(picked(parts.of(in_place(shuffled)), partners), in_planes(order, partners))
    sources = paste(places, height, width)
    sources = with_odd_zones(shuffled, sources, fine, defense.block)
    images = taken(shuffled, sources)
    mean = (belief[:, None] @ coloured.flatten(5)).view_as(coloured)
    known = parts.real[..., None, None].expand(mean.shape[2:])
    return Solved(
        images=images,
        expected=paste(torch.where(known, mean, parts.of(images)), height, width),
        sources=sources,
        confidence=certainty(coloured, order, sure, parts),
    )


def in_planes(order: Tensor, partners: Tensor) -> Tensor:
    """An order ``[B, R, Q, 16]`` for every plane."""
    return order[:, None].expand_as(partners)


def arranged(costs: Seams, parts: Cells) -> tuple[Tensor, Tensor]:
    """The order of least cost found, ``[B, R, Q, 16]``, and the beliefs that led to it."""
    orders, found, totals = [], [], []
    for first, last in SCHEDULES:
        belief = region_beliefs(costs, parts, np.geomspace(first, last, ROUNDS).tolist())
        order = least(parts.as_blocks(-(belief + TINY).log()) + parts.cannot)
        orders.append(order)
        found.append(belief)
        totals.append(costs.total(order))
    best = torch.stack(totals).argmin(0)
    each = torch.arange(len(best), device=best.device)
    return torch.stack(orders)[best, each], torch.stack(found)[best, each]


def certainty(coloured: Tensor, order: Tensor, belief: Tensor, parts: Cells) -> Tensor:
    """The mean belief ``[B]`` in what cells show; items that look alike speak for each other."""
    looks = coloured.movedim(1, 4).flatten(4)
    alike = torch.cdist(looks, looks, p=float("inf")) < ALIKE
    shown = alike.gather(-2, order[..., None].expand_as(alike))
    sure = (belief * shown).sum(-1).clamp_max(1) * parts.real
    return sure.flatten(1).sum(1) / parts.real.sum().clamp_min(1)


def with_odd_zones(shuffled: Tensor, sources: Tensor, fine: Tensor, block: int | None) -> Tensor:
    """``sources``, in which strips of odd blocks have been put in order too.

    Where an image's side leaves a rest that no block of S/4 divides, blocks are too small to be
    judged by seams: they are laid so that the strip goes on as the image beside it ends.
    """
    height, width = shuffled.shape[-2:]
    side = region_side(height, width)
    if not any(is_odd(zone, side) for zone in split_into_zones(height, width, block)):
        return sources
    found = taken(shuffled, sources)
    like = gone_on(found, side)
    return taken(sources, by_content(found, like, pools(found, fine, block, odd_only=True)))


def gone_on(found: Tensor, side: int) -> Tensor:
    """The image with its odd strips overwritten by the last pixels before them."""
    height, width = (in_order(length, side) for length in found.shape[-2:])
    if not height or not width:
        return thumbnail(found)
    rest = (0, found.shape[-1] - width, 0, found.shape[-2] - height)
    return F.pad(found[..., :height, :width], rest, mode="replicate")


def in_order(length: int, side: int) -> int:
    """How much of an axis has blocks of S/4 and above."""
    rest = length % side
    return length if rest % (side // 4) == 0 else length - rest
