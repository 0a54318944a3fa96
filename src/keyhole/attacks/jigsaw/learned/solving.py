"""The solver of :mod:`..regions`, advised by a network that has seen many images."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import TINY, Puzzle, balance
from keyhole.attacks.jigsaw.learned.network import Unscrambler, sizes
from keyhole.attacks.jigsaw.learned.shipped import load_unscrambler
from keyhole.attacks.jigsaw.regions.blocks import least
from keyhole.attacks.jigsaw.regions.cells import Cells
from keyhole.attacks.jigsaw.regions.links import region_beliefs
from keyhole.attacks.jigsaw.regions.seams import Seams
from keyhole.attacks.jigsaw.regions.solving import (
    ROUNDS,
    SCHEDULES,
    Adviser,
    Solved,
    solve,
)
from keyhole.defenses.csvar import Csvar, check_images
from keyhole.defenses.regions import region_side
from keyhole.errors import DoesNotFit

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

    As :func:`~keyhole.attacks.jigsaw.regions.solve` does; then the ``network`` (None: the one
    that comes with Keyhole) corrects the beliefs, and seams are weighed once more beside them, in
    half as much time again. The confidence is the network's: it has been told when it was wrong.
    """
    network = network or load_unscrambler()
    check_images(shuffled)
    if (side := region_side(*shuffled.shape[-2:])) != 4 * network.side:
        raise DoesNotFit(
            f"the unscrambler is for regions of {4 * network.side} px, not of {side}: use solve"
        )
    if next(network.parameters()).device != shuffled.device:
        network = copy.deepcopy(network).to(shuffled.device)
    return solve(shuffled, defense=defense, adviser=adviser_by(network))


def adviser_by(network: Unscrambler) -> Adviser:
    """Beliefs corrected by the network, then weighed beside the seams once more."""

    def advise(
        parts: Cells, coloured: Tensor, costs: Seams, belief: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        advice = corrected(network, in_grey(parts, coloured), belief)
        return *advised(costs, parts, advice), advice

    return advise


def advised(costs: Seams, parts: Cells, advice: Tensor) -> tuple[Tensor, Tensor]:
    """The order found by the seams with the network's advice, ``[B, R, Q, 16]``, and the beliefs.

    Both ``advice`` and the beliefs are ``[B, R, Q, 16, 16]``.
    """
    alone = -WEIGHT * advice.log().clamp_min(FAINTEST) / sizes(parts)
    schedule = np.geomspace(*SCHEDULES[0], ROUNDS).tolist()
    belief = region_beliefs(costs, parts, schedule, alone)
    return least(parts.as_blocks(-(belief + TINY).log()) + parts.cannot), belief


def corrected(network: Unscrambler, grey: Cells, belief: Tensor) -> Tensor:
    """What the network believes, ``[B, R, Q, 16, 16]``; rows and columns sum to about one."""
    with torch.no_grad():
        logits = network(grey, belief)
    price = balance(logits, torch.zeros_like(logits[..., :1, :]), Puzzle.balancing[1])
    return torch.softmax(logits - price, -1)


def in_grey(parts: Cells, coloured: Tensor) -> Cells:
    """The mean over planes of items ``[B, C, R, Q, 16, side, side]`` whose planes are matched."""
    return Cells(coloured.mean(1, keepdim=True), parts.coarse, parts.real)
