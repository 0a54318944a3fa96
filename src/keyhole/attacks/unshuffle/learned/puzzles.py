"""Puzzles with known answers, made of public images: what an unscrambler is trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from keyhole.attacks.unshuffle.regions.belief import beliefs
from keyhole.attacks.unshuffle.regions.cells import Cells, cells, picked
from keyhole.attacks.unshuffle.regions.planes import matched
from keyhole.attacks.unshuffle.regions.seams import seams
from keyhole.attacks.unshuffle.regions.solving import ROUNDS, SCHEDULES
from keyhole.defenses import Csvar
from keyhole.defenses.regions import sensitive

ALIKE = 1e-3
"""Blocks that differ by less than this are one as good as the other."""
NOISE = 0.1
"""The most noise on a pixel, of the half of the images that have any."""


@dataclass(frozen=True)
class Album:
    """Public images ``pixels [N, C, H, W]``, uint8, and how they are shown."""

    pixels: Tensor
    crops: tuple[int, ...] = (32,)
    """Sides of the squares cut out of them, one of them for each batch."""
    mirrored: bool = True
    """Half of the images are: not for what is read, such as digits."""


@dataclass(frozen=True)
class Puzzle:
    """Shuffled images in grey, what their seams say, and the answers, ``[B, R, Q, 16, 16]``."""

    parts: Cells
    belief: Tensor
    right: Tensor
    """Which items (last axis) are the ones in a cell, bool: several where blocks are alike."""
    asked: Tensor
    """Pairs of which there is any doubt, bool: not the sixteen black blocks of a black region."""

    def of(self, chosen: Tensor) -> Puzzle:
        """Some of the images, by their numbers."""
        parts = Cells(self.parts.items[chosen], self.parts.coarse[chosen], self.parts.real)
        return Puzzle(parts, self.belief[chosen], self.right[chosen], self.asked[chosen])


def puzzle(album: Album, count: int, draw: torch.Generator) -> Puzzle:
    """``count`` images of an album, shuffled; one half with noise, as attacks read pixels."""
    truth = crops(album, count, draw)
    seeds = torch.randint(2**62, (count,), generator=draw)
    parts = cells(Csvar().shuffle(truth, seeds), sensitive(truth))
    right, asked = answers(parts, truth)
    seen = Cells(parts.items + noise(parts.items, draw), parts.coarse, parts.real)
    coloured = picked(seen.items, matched(seen)) if truth.shape[1] > 1 else seen.items
    schedule = np.geomspace(*SCHEDULES[0], ROUNDS).tolist()
    belief = beliefs(seams(seen, coloured), seen, None, schedule)
    return Puzzle(in_grey(seen, coloured), belief, right, asked)


def in_grey(parts: Cells, coloured: Tensor) -> Cells:
    """The mean over planes of items ``[B, C, R, Q, 16, side, side]`` whose planes are matched."""
    return Cells(coloured.mean(1, keepdim=True), parts.coarse, parts.real)


def answers(parts: Cells, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the middle plane's items are right in which cells, and where it is any question."""
    middle = truth.shape[1] // 2
    wanted, items = (x[:, middle].flatten(4) for x in (parts.of(truth), parts.items))
    same = (torch.cdist(wanted, items, p=float("inf")) < ALIKE).to(items)
    may = parts.cannot == 0
    whole = torch.where(parts.coarse, 4, 1)[..., None, None]
    right = (parts.as_blocks(same) >= whole) & may
    real = parts.real[..., :, None] & parts.real[..., None, :]
    wrong = may & ~right
    return right, real & wrong.any(-1, keepdim=True) & wrong.any(-2, keepdim=True)


def noise(items: Tensor, draw: torch.Generator) -> Tensor:
    """White noise of a deviation up to NOISE for one half of the images, none for the other."""
    shape = (len(items), *(1,) * (items.ndim - 1))
    sigma = (torch.rand(shape, generator=draw) * 2 - 1).clamp_min(0) * NOISE
    return (sigma * torch.randn(items.shape, generator=draw)).to(items.device)


def crops(album: Album, count: int, draw: torch.Generator) -> Tensor:
    """Squares ``[count, C, side, side]`` in [0, 1] from random places of random images."""
    total, planes, height, width = album.pixels.shape
    side = album.crops[int(torch.randint(len(album.crops), (1,), generator=draw))]
    chosen = torch.randint(total, (count,), generator=draw)
    top = torch.randint(height - side + 1, (count, 1), generator=draw)
    left = torch.randint(width - side + 1, (count, 1), generator=draw)
    step = torch.arange(side)
    down, across = top + step, left + step
    mirrored = torch.rand(count, 1, generator=draw) < (0.5 if album.mirrored else 0.0)
    across = torch.where(mirrored, across.flip(1), across)
    index = (chosen[:, None, None], down[:, :, None], across[:, None, :])
    picture, row, column = (i.to(album.pixels.device) for i in index)
    found = [album.pixels[picture, plane, row, column] for plane in range(planes)]
    return torch.stack(found, 1).float() / 255
