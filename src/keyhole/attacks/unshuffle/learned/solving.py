"""The solver of :mod:`..regions`, advised by a network that has seen many images."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from keyhole.attacks.unshuffle.learned.network import Unscrambler, sizes
from keyhole.attacks.unshuffle.learned.puzzles import in_grey
from keyhole.attacks.unshuffle.learned.shipped import load_unscrambler
from keyhole.attacks.unshuffle.regions.belief import LAST_BALANCING, TINY, balanced, beliefs
from keyhole.attacks.unshuffle.regions.blocks import in_place, least, taken
from keyhole.attacks.unshuffle.regions.cells import CELLS, Cells, cells, paste, picked
from keyhole.attacks.unshuffle.regions.planes import matched
from keyhole.attacks.unshuffle.regions.seams import Seams, seams
from keyhole.attacks.unshuffle.regions.solving import (
    AT_ONCE,
    ROUNDS,
    SCHEDULES,
    Solved,
    arranged,
    certainty,
    in_planes,
    with_odd_zones,
)
from keyhole.defenses.csvar import Csvar, check
from keyhole.defenses.regions import region_side, sensitive
from keyhole.errors import BadValue, DoesNotFit

WEIGHT = 0.5
"""Of the network's advice when seams are weighed again: it has heard of them already. Chosen by
public images that it had not seen; from 0.25 to 2 SSIM differs by 0.015 at most."""
FAINTEST = -7.0
"""The log of the least probability that its advice may give."""


def fits(shuffled: Tensor) -> bool:
    """Whether the shipped network is for images ``[B, C, H, W]`` of this size: 17 to 64 px."""
    return region_side(*shuffled.shape[-2:]) == 8


def solve_learned(
    shuffled: Tensor, *, defense: Csvar | None = None, network: Unscrambler | None = None
) -> Solved:
    """Puts the blocks of ``shuffled [B, C, H, W]``, floats in [0, 1], in order.

    As :func:`~keyhole.attacks.unshuffle.regions.solve` does; then the ``network`` (None: the one
    that comes with Keyhole) corrects the beliefs, and seams are weighed once more beside them, in
    half as much time again. The confidence is the network's: it has been told when it was wrong.
    """
    defense, network = defense or Csvar(), network or load_unscrambler()
    check(shuffled)
    if not shuffled.is_floating_point() or not bool(shuffled.isfinite().all()):
        raise BadValue("solve_learned takes finite floats in [0, 1]")
    if defense.channels == "mixed":
        raise DoesNotFit("blocks that changed planes (channels='mixed') are not put in order")
    if (side := region_side(*shuffled.shape[-2:])) != 4 * network.side:
        raise DoesNotFit(
            f"the unscrambler is for regions of {4 * network.side} px, not of {side}: use solve"
        )
    if next(network.parameters()).device != shuffled.device:
        network = copy.deepcopy(network).to(shuffled.device)
    limit = AT_ONCE.get(shuffled.device.type, AT_ONCE["cuda"])
    rows, columns = (-(-length // side) for length in shuffled.shape[-2:])
    step = max(1, limit // (rows * columns))
    starts = range(0, max(1, len(shuffled)), step)
    parts = [solve_some(shuffled[i : i + step], defense, network) for i in starts]
    return Solved(
        images=torch.cat([part.images for part in parts]),
        expected=torch.cat([part.expected for part in parts]),
        sources=torch.cat([part.sources for part in parts]),
        confidence=torch.cat([part.confidence for part in parts]),
    )


def solve_some(shuffled: Tensor, defense: Csvar, network: Unscrambler) -> Solved:
    """:func:`solve_learned` of so many images as fit."""
    height, width = shuffled.shape[-2:]
    fine = sensitive(shuffled)
    parts = cells(shuffled, fine, defense.block)
    numbers = torch.arange(CELLS, device=shuffled.device)
    partners = numbers.expand(parts.items.shape[:5])
    if defense.channels == "apart" and shuffled.shape[1] > 1:
        partners = torch.where(parts.real, matched(parts), numbers)
    coloured = picked(parts.items, partners)
    costs = seams(parts, coloured)
    advice = corrected(network, in_grey(parts, coloured), arranged(costs, parts, None)[1])
    order, belief = advised(costs, parts, advice)
    order = torch.where(parts.real, order, numbers)

    places = picked(picked(parts.of(in_place(shuffled)), partners), in_planes(order, partners))
    sources = paste(places, height, width)
    sources = with_odd_zones(shuffled, sources, fine, defense.block, None)
    images = taken(shuffled, sources)
    mean = (belief[:, None] @ coloured.flatten(5)).view_as(coloured)
    known = parts.real[..., None, None].expand(mean.shape[2:])
    return Solved(
        images=images,
        expected=paste(torch.where(known, mean, parts.of(images)), height, width),
        sources=sources,
        confidence=certainty(coloured, order, advice, parts),
    )


def advised(costs: Seams, parts: Cells, advice: Tensor) -> tuple[Tensor, Tensor]:
    """The order found by the seams with the network's advice, ``[B, R, Q, 16]``, and the beliefs.

    Both ``advice`` and the beliefs are ``[B, R, Q, 16, 16]``.
    """
    alone = -WEIGHT * advice.log().clamp_min(FAINTEST) / sizes(parts)
    belief = beliefs(costs, parts, alone, np.geomspace(*SCHEDULES[0], ROUNDS).tolist())
    return least(parts.as_blocks(-(belief + TINY).log()) + parts.cannot), belief


def corrected(network: Unscrambler, grey: Cells, belief: Tensor) -> Tensor:
    """What the network believes, ``[B, R, Q, 16, 16]``; rows and columns sum to about one."""
    with torch.no_grad():
        logits = network(grey, belief)
    price = balanced(logits, torch.zeros_like(logits[..., :1, :]), LAST_BALANCING)
    return torch.softmax(logits - price, -1)
