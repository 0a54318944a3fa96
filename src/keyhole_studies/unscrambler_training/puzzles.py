"""Puzzles with known answers, made of public images: what an unscrambler is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from keyhole.attacks.jigsaw.learned.solving import in_grey
from keyhole.attacks.jigsaw.regions.cells import Cells, cells, picked
from keyhole.attacks.jigsaw.regions.links import region_beliefs
from keyhole.attacks.jigsaw.regions.planes import matched
from keyhole.attacks.jigsaw.regions.seams import seams
from keyhole.attacks.jigsaw.regions.solving import ROUNDS, SCHEDULES
from keyhole.defenses import Csvar
from keyhole.defenses.regions import find_sensitive_regions

ALIKE = 1e-3
"""Blocks that differ by less than this are equally right."""
NOISE = 0.1
"""The largest deviation of the noise on half of the images."""


@dataclass(frozen=True)
class PublicImages:
    """Public images, and how they are shown.

    Args:
        pixels: ``[N, C, H, W]``, uint8.
        crops: Sides of the squares that are cut out of them; all of one batch have the same side.
        mirrored: Half of the images are mirrored; not for what is read, such as digits.
    """

    pixels: Tensor
    crops: tuple[int, ...] = (32,)
    mirrored: bool = True


@dataclass(frozen=True)
class LabelledPuzzle:
    """Shuffled images in grey, what their seams say, and the answers, ``[B, R, Q, 16, 16]``."""

    parts: Cells
    belief: Tensor
    right: Tensor
    """Which items (last axis) are the ones in a cell, bool: several where blocks are alike."""
    asked: Tensor
    """Pairs of which there is any doubt, bool: not the sixteen black blocks of a black region."""

    def choose(self, chosen: Tensor) -> LabelledPuzzle:
        """The puzzles of some of the images, by their numbers."""
        parts = Cells(self.parts.items[chosen], self.parts.coarse[chosen], self.parts.real)
        return LabelledPuzzle(parts, self.belief[chosen], self.right[chosen], self.asked[chosen])


def make_puzzle(images: PublicImages, count: int, draw: torch.Generator) -> LabelledPuzzle:
    """Shuffles ``count`` of the images, half of them with noise, as attacks read pixels.

    Args:
        images: What to choose from.
        count: How many images.
        draw: Draws images, crops, shuffles and noise.
    """
    truth = cut_crops(images, count, draw)
    seeds = torch.randint(2**62, (count,), generator=draw)
    parts = cells(Csvar().shuffle(truth, seeds), find_sensitive_regions(truth))
    right, asked = find_answers(parts, truth)
    seen = Cells(parts.items + draw_noise(parts.items, draw), parts.coarse, parts.real)
    coloured = picked(seen.items, matched(seen)) if truth.shape[1] > 1 else seen.items
    schedule = np.geomspace(*SCHEDULES[0], ROUNDS).tolist()
    belief = region_beliefs(seams(seen, coloured), seen, schedule)
    return LabelledPuzzle(in_grey(seen, coloured), belief, right, asked)


def find_answers(parts: Cells, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the middle plane's items are right in which cells, and where there is any doubt."""
    middle = truth.shape[1] // 2
    wanted, items = (x[:, middle].flatten(4) for x in (parts.of(truth), parts.items))
    same = (torch.cdist(wanted, items, p=float("inf")) < ALIKE).to(items)
    may = parts.cannot == 0
    whole = torch.where(parts.coarse, 4, 1)[..., None, None]
    right = (parts.as_blocks(same) >= whole) & may
    real = parts.real[..., :, None] & parts.real[..., None, :]
    wrong = may & ~right
    return right, real & wrong.any(-1, keepdim=True) & wrong.any(-2, keepdim=True)


def draw_noise(items: Tensor, draw: torch.Generator) -> Tensor:
    """White noise of a deviation up to NOISE for half of the images, none for the others."""
    shape = (len(items), *(1,) * (items.ndim - 1))
    sigma = (torch.rand(shape, generator=draw) * 2 - 1).clamp_min(0) * NOISE
    return (sigma * torch.randn(items.shape, generator=draw)).to(items.device)


def cut_crops(images: PublicImages, count: int, draw: torch.Generator) -> Tensor:
    """Squares ``[count, C, side, side]`` in [0, 1] from random places of random images."""
    total, planes, height, width = images.pixels.shape
    side = images.crops[int(torch.randint(len(images.crops), (1,), generator=draw))]
    chosen = torch.randint(total, (count,), generator=draw)
    top = torch.randint(height - side + 1, (count, 1), generator=draw)
    left = torch.randint(width - side + 1, (count, 1), generator=draw)
    step = torch.arange(side)
    down, across = top + step, left + step
    mirrored = torch.rand(count, 1, generator=draw) < (0.5 if images.mirrored else 0.0)
    across = torch.where(mirrored, across.flip(1), across)
    index = (chosen[:, None, None], down[:, :, None], across[:, None, :])
    picture, row, column = (i.to(images.pixels.device) for i in index)
    found = [images.pixels[picture, plane, row, column] for plane in range(planes)]
    return torch.stack(found, 1).float() / 255
