"""A jigsaw solver that knows which cells were shuffled: all others are in place and anchor them.

It never sees the truth. It computes what the seams say about every patch in every cell
(:mod:`belief`), improves the arrangements that several such beliefs suggest (:mod:`descent`), and
keeps the cheapest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from keyhole.attacks.jigsaw.belief import (
    FROM_ABOVE,
    FROM_LEFT,
    TINY,
    Link,
    Puzzle,
    compute_beliefs,
)
from keyhole.attacks.jigsaw.costs import ArrangementCosts, Indices, compute_arrangement_costs
from keyhole.attacks.jigsaw.descent import MIN_GAIN, descend
from keyhole.attacks.jigsaw.seams import Array, compute_seam_costs
from keyhole.errors import BadValue, DoesNotFit
from keyhole.models.puzzle import cut_patches, join_patches

ROUNDS = 60
SCHEDULES = ((1.0, 1.0), (0.7, 0.7), (0.5, 0.5), (3.0, 0.5), (6.0, 0.3))
"""First and last temperature. At 1 beliefs are what the seams' probabilities say. A lower one
decides earlier, a falling one lets distant cells count first. None is the best for all images."""


@dataclass(frozen=True)
class Placement:
    """An image put in order, and how sure the attacker is of it.

    Args:
        image: ``[C, H, W]``.
        order: ``[gh * gw]``: cell i shows patch ``order[i]`` of the shuffled image.
        cost: Minus the log-probability of all seams that touch a shuffled cell, in nats.
        certainty: ``[gh, gw]``: the attacker's probability that a cell shows the right patch.
        confidence: Mean certainty of the shuffled cells: the share that the attacker expects to
            have placed right.
    """

    image: Tensor
    order: Tensor
    cost: float
    certainty: Tensor
    confidence: float


def unshuffle(image: Tensor, shuffled: Tensor) -> Placement:
    """Puts the patches of an image back in order; those of cells that were not shuffled stay.

    Args:
        image: The shuffled image ``[C, H, W]``.
        shuffled: Which cells of the grid were shuffled, bool ``[gh, gw]``.
    """
    check_inputs(image, shuffled)
    grid = (shuffled.shape[0], shuffled.shape[1])
    cells = shuffled.cpu().flatten().nonzero()[:, 0]
    order = torch.arange(shuffled.numel())
    certainty = torch.ones(shuffled.numel(), dtype=torch.double)
    patches = cut_patches(image[None], grid)[0]
    cost, confidence = 0.0, 1.0
    if len(cells):
        sides = (image.shape[1] // grid[0], image.shape[2] // grid[1])
        pixels = patches.detach().cpu().double().numpy().reshape(-1, len(image), *sides)
        costs = compute_arrangement_costs(compute_seam_costs(pixels), shuffled.cpu().numpy())
        arrangement, cost, beliefs = find_arrangement(costs)
        order[cells] = cells[torch.from_numpy(arrangement)]
        certainty[cells] = torch.from_numpy(beliefs[np.arange(costs.size), arrangement])
        confidence = float(certainty[cells].mean())
    return Placement(
        image=join_patches(patches[order.to(image.device)][None], image[None].shape, grid)[0],
        order=order,
        cost=cost,
        certainty=certainty.view(grid),
        confidence=confidence,
    )


def find_arrangement(costs: ArrangementCosts) -> tuple[Indices, float, Array]:
    """The arrangement of least cost found, its cost, and the beliefs at temperature one.

    The patches stay as they are unless that lowers the cost.
    """
    best = np.arange(costs.size)
    least = costs.total(best)
    beliefs_at_one: Array = np.eye(costs.size)
    for first, last in SCHEDULES:
        beliefs = compute_patch_beliefs(costs, np.geomspace(first, last, ROUNDS))
        if first == last == 1:
            beliefs_at_one = beliefs
        arrangement, total = descend(costs, linear_sum_assignment(-np.log(beliefs + TINY))[1])
        if total < least - MIN_GAIN:
            best, least = arrangement, total
    return best, least, beliefs_at_one


class PatchPuzzle(Puzzle):
    """The shuffled cells ``[m]`` of one image, any of whose patches may lie in any of them."""

    balancing = (5, 0)

    def __init__(self, costs: ArrangementCosts) -> None:
        self.unary = torch.from_numpy(costs.unary)
        self.no_messages = torch.zeros(4, costs.size, costs.size, dtype=torch.double)
        pairwise = torch.from_numpy(costs.pairwise - costs.pairwise.min())
        self.links = []
        for direction, side in ((0, FROM_LEFT), (2, FROM_ABOVE)):
            cells = np.flatnonzero(costs.neighbours[direction] < costs.size)
            neighbours = costs.neighbours[direction, cells]
            first, second = ((torch.from_numpy(some),) for some in (cells, neighbours))
            self.links.append(Link(side, first, second, pairwise[direction]))

    def logits(self, messages: Tensor, temperature: float) -> Tensor:
        return messages - self.unary / temperature


def compute_patch_beliefs(costs: ArrangementCosts, temperatures: Array) -> Array:
    """P(patch p lies in cell i), ``[m, m]``."""
    beliefs: Array = compute_beliefs(PatchPuzzle(costs), temperatures.tolist()).numpy()
    return beliefs


def check_inputs(image: Tensor, shuffled: Tensor) -> None:
    """Raises an error that says what does not fit."""
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
            "into equal patches of at least 2 px per side"
        )
    if not bool(image.isfinite().all()):
        raise BadValue("unshuffle needs finite pixels: the image holds NaN or infinity")
