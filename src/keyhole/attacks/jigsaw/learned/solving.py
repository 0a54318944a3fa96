"""The solver of :mod:`..regions`, advised by a network that has seen many images."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import Puzzle, balance_prices
from keyhole.attacks.jigsaw.learned.network import Unscrambler
from keyhole.attacks.jigsaw.learned.shipped import load_unscrambler
from keyhole.attacks.jigsaw.regions import (
    Cells,
    RegionSeamCosts,
    Solution,
    average_planes,
    compute_region_beliefs,
    solve,
)
from keyhole.attacks.jigsaw.regions.solving import Adviser, choose_order
from keyhole.defenses.csvar import Csvar, check_images
from keyhole.defenses.regions import region_side
from keyhole.errors import DoesNotFit

ADVICE_WEIGHT = 0.5
"""Weight of the network's advice when seams are weighed again, since it is based on them. Chosen on
public images that the network had not seen; from 0.25 to 2 SSIM differs by 0.015 at most."""
MIN_LOG_ADVICE = -7.0
"""The log of the least probability that the advice may give."""


def fits_shipped_network(shuffled: Tensor) -> bool:
    """Whether the shipped network is for images ``[B, C, H, W]`` of this size: 17 to 64 px."""
    return region_side(*shuffled.shape[-2:]) == 8


def solve_with_network(
    shuffled: Tensor, *, defense: Csvar | None = None, network: Unscrambler | None = None
) -> Solution:
    """Puts the blocks of shuffled images in order with the advice of a network.

    :func:`~keyhole.attacks.jigsaw.regions.solve` computes beliefs, the network corrects them, and
    the seams are weighed once more beside them, which takes half as much time again. The confidence
    is the network's, which was trained on right and wrong answers.

    Args:
        shuffled: ``[B, C, H, W]``, floats in [0, 1].
        defense: The defense as the attacker knows it.
        network: The adviser; None: the unscrambler that is shipped with Keyhole.
    """
    network = network or load_unscrambler()
    check_images(shuffled)
    if (side := region_side(*shuffled.shape[-2:])) != 4 * network.side:
        raise DoesNotFit(
            f"the unscrambler is for regions of {4 * network.side} px, not of {side}: use solve"
        )
    if next(network.parameters()).device != shuffled.device:
        network = copy.deepcopy(network).to(shuffled.device)
    return solve(shuffled, defense=defense, adviser=make_adviser(network))


def make_adviser(network: Unscrambler) -> Adviser:
    """An adviser that corrects beliefs by the network and weighs the seams beside them again."""

    def advise(
        cells: Cells, coloured: Tensor, seams: RegionSeamCosts, beliefs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        advice = correct_beliefs(network, average_planes(cells, coloured), beliefs)
        log_advice = advice.log().clamp_min(MIN_LOG_ADVICE)
        unary = -ADVICE_WEIGHT * log_advice / cells.cells_per_block
        advised = compute_region_beliefs(seams, cells, unary=unary)
        return choose_order(advised, cells), advised, advice

    return advise


def correct_beliefs(network: Unscrambler, grey: Cells, beliefs: Tensor) -> Tensor:
    """What the network believes, ``[B, R, Q, 16, 16]``; rows and columns sum to about one."""
    with torch.no_grad():
        logits = network(grey, beliefs)
    start = torch.zeros_like(logits[..., :1, :])
    return torch.softmax(logits - balance_prices(logits, start, Puzzle.balancing[1]), -1)
