"""A jigsaw solver that knows which cells were shuffled: all others are in place and anchor them.

It never sees the truth. It asks what the seams say of every patch in every cell (:mod:`belief`),
goes downhill from several such beliefs (:mod:`descent`), and keeps what costs least.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from keyhole.attacks.jigsaw.belief import FROM_ABOVE, FROM_LEFT, TINY, Link, Puzzle, beliefs
from keyhole.attacks.jigsaw.costs import Costs, Indices, arrangement_costs
from keyhole.attacks.jigsaw.descent import GAIN, descend
from keyhole.attacks.jigsaw.seams import Array, seam_costs
from keyhole.errors import BadValue, DoesNotFit
from keyhole.models.puzzle import cut_patches, join_patches

ROUNDS = 60
SCHEDULES = ((1.0, 1.0), (0.7, 0.7), (0.5, 0.5), (3.0, 0.5), (6.0, 0.3))
"""First and last temperature. At 1 beliefs are what the seams' probabilities say; a cooler one
decides earlier, a falling one lets distant cells speak first. None is the best for all images."""


@dataclass(frozen=True)
class Placement:
    """An image put in order, and what the attacker itself thinks of it."""

    image: Tensor
    """``[C, H, W]``"""
    order: Tensor
    """``[gh * gw]``: cell i shows patch ``order[i]`` of the image that was given."""
    cost: float
    """Minus the log-probability of all seams that touch a shuffled cell, in nats."""
    certainty: Tensor
    """``[gh, gw]``: the attacker's probability that a cell shows the right patch."""
    confidence: float
    """Mean certainty of the shuffled cells, 0 to 1: the share it expects to have placed right."""


def unshuffle(image: Tensor, shuffled: Tensor) -> Placement:
    """Puts the patches of ``image [C, H, W]`` back, given which cells were ``shuffled [gh, gw]``.

    The mask's shape is the grid's. Patches whose cells were not shuffled stay where they are.
    """
    check(image, shuffled)
    grid = (shuffled.shape[0], shuffled.shape[1])
    cells = shuffled.cpu().flatten().nonzero()[:, 0]
    order = torch.arange(shuffled.numel())
    certainty = torch.ones(shuffled.numel(), dtype=torch.double)
    patches = cut_patches(image[None], grid)[0]
    cost, confidence = 0.0, 1.0
    if len(cells):
        sides = (image.shape[1] // grid[0], image.shape[2] // grid[1])
        pixels = patches.detach().cpu().double().numpy().reshape(-1, len(image), *sides)
        costs = arrangement_costs(seam_costs(pixels), shuffled.cpu().numpy())
        arrangement, cost, belief = arrange(costs)
        order[cells] = cells[torch.from_numpy(arrangement)]
        certainty[cells] = torch.from_numpy(belief[np.arange(costs.size), arrangement])
        confidence = float(certainty[cells].mean())
    return Placement(
        image=join_patches(patches[order.to(image.device)][None], image[None].shape, grid)[0],
        order=order,
        cost=cost,
        certainty=certainty.view(grid),
        confidence=confidence,
    )


def arrange(costs: Costs) -> tuple[Indices, float, Array]:
    """The arrangement of least cost found, its cost, and the beliefs at temperature one.

    One that costs no less than the arrangement as given does not replace it.
    """
    best = np.arange(costs.size)
    least = costs.total(best)
    likely: Array = np.eye(costs.size)
    for first, last in SCHEDULES:
        belief = patch_beliefs(costs, np.geomspace(first, last, ROUNDS))
        if first == last == 1:
            likely = belief
        found, total = descend(costs, linear_sum_assignment(-np.log(belief + TINY))[1])
        if total < least - GAIN:
            best, least = found, total
    return best, least, likely


class PatchPuzzle(Puzzle):
    """The shuffled cells ``[m]`` of one image, any of whose patches may lie in any of them."""

    balancing = (5, 0)

    def __init__(self, costs: Costs) -> None:
        self.alone = torch.from_numpy(costs.alone)
        self.silence = torch.zeros(4, costs.size, costs.size, dtype=torch.double)
        beside = torch.from_numpy(costs.beside - costs.beside.min())
        self.links = []
        for direction, side in ((0, FROM_LEFT), (2, FROM_ABOVE)):
            cells = np.flatnonzero(costs.neighbours[direction] < costs.size)
            neighbours = costs.neighbours[direction, cells]
            first, second = ((torch.from_numpy(some),) for some in (cells, neighbours))
            self.links.append(Link(side, first, second, beside[direction]))

    def logits(self, heard: Tensor, temperature: float) -> Tensor:
        return heard - self.alone / temperature


def patch_beliefs(costs: Costs, temperatures: Array) -> Array:
    """P(patch p lies in cell i), ``[m, m]``."""
    found: Array = beliefs(PatchPuzzle(costs), temperatures.tolist()).numpy()
    return found


def check(image: Tensor, shuffled: Tensor) -> None:
    """Says what does not fit."""
    if image.ndim != 3 or shuffled.ndim != 2 or shuffled.dtype != torch.bool:
        raise DoesNotFit(
            "unshuffle takes an image [C, H, W] and a boolean mask [rows, columns], not "
            f"{list(image.shape)} and {shuffled.dtype} {list(shuffled.shape)}"
        )
    height, width, rows, columns = *image.shape[1:], *shuffled.shape
    whole = 0 < 2 * rows <= height and 0 < 2 * columns <= width
    if not whole or height % rows or width % columns:
        raise DoesNotFit(
            f"a grid of {rows}x{columns} cells does not cut an image of {height}x{width} px "
            "into equal patches of at least 2 px a side"
        )
    if not bool(image.isfinite().all()):
        raise BadValue("unshuffle needs finite pixels: the image holds NaN or infinity")
