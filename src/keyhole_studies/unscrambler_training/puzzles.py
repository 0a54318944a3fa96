"""Puzzles with known answers, made of public images: what an unscrambler is trained on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.regions import (
    Cells,
    average_planes,
    build_cells,
    compute_region_beliefs,
    compute_region_seam_costs,
    match_planes,
    reorder_pieces,
)
from keyhole.defenses import Csvar, find_sensitive_regions

ALIKE = 1e-3
"""Blocks that differ by less than this are equally right."""
NOISE = 0.1
"""The largest deviation of the noise on half of the images."""


@dataclass(frozen=True)
class PublicImages:
    """Public images, and how they are cropped.

    Args:
        pixels: ``[N, C, H, W]``, uint8.
        crops: Sides of the squares that are cut out of them; all of one batch have the same side.
        mirrored: Whether half of the images are mirrored; False for digits and letters.
    """

    pixels: Tensor
    crops: tuple[int, ...] = (32,)
    mirrored: bool = True


@dataclass(frozen=True)
class LabelledPuzzle:
    """Shuffled images in grey, what their seams say, and the answers.

    Args:
        cells: The cells of the images.
        belief: P(piece in cell) by the seams, ``[B, R, Q, 16, 16]``.
        right: Which pieces (last axis) are right in a cell, bool ``[B, R, Q, 16, 16]``: several
            where blocks are alike.
        in_doubt: Pairs about which there is any doubt, bool ``[B, R, Q, 16, 16]``: not those of
            the sixteen black blocks of a black region.
    """

    cells: Cells
    belief: Tensor
    right: Tensor
    in_doubt: Tensor

    def choose(self, chosen: Tensor) -> LabelledPuzzle:
        """The puzzles of some of the images, by their numbers."""
        cells = Cells(self.cells.pieces[chosen], self.cells.coarse[chosen], self.cells.real)
        return LabelledPuzzle(cells, self.belief[chosen], self.right[chosen], self.in_doubt[chosen])


def make_puzzle(images: PublicImages, count: int, draw: torch.Generator) -> LabelledPuzzle:
    """Shuffles ``count`` of the images, half of them with noise, as attacks read pixels.

    Args:
        images: What to choose from.
        count: How many images.
        draw: Draws images, crops, shuffles and noise.
    """
    truth = cut_crops(images, count, draw)
    seeds = torch.randint(2**62, (count,), generator=draw)
    clean = build_cells(Csvar().shuffle(truth, seeds), find_sensitive_regions(truth))
    right, in_doubt = find_answers(clean, truth)
    noisy = replace(clean, pieces=clean.pieces + draw_noise(clean.pieces, draw))
    coloured = noisy.pieces
    if truth.shape[1] > 1:
        coloured = reorder_pieces(noisy.pieces, match_planes(noisy))
    belief = compute_region_beliefs(compute_region_seam_costs(noisy, coloured), noisy)
    return LabelledPuzzle(average_planes(noisy, coloured), belief, right, in_doubt)


def find_answers(cells: Cells, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the middle plane's pieces are right in which cells, and where there is any doubt."""
    middle = truth.shape[1] // 2
    wanted, pieces = (x[:, middle].flatten(4) for x in (cells.cut(truth), cells.pieces))
    same = (torch.cdist(wanted, pieces, p=float("inf")) < ALIKE).to(pieces)
    possible = cells.forbidden == 0
    right = (cells.sum_over_blocks(same) >= cells.cells_per_block) & possible
    real = cells.real[..., :, None] & cells.real[..., None, :]
    wrong = possible & ~right
    return right, real & wrong.any(-1, keepdim=True) & wrong.any(-2, keepdim=True)


def draw_noise(pieces: Tensor, draw: torch.Generator) -> Tensor:
    """White noise of a deviation up to NOISE for half of the images, none for the others."""
    shape = (len(pieces), *(1,) * (pieces.ndim - 1))
    sigma = (torch.rand(shape, generator=draw) * 2 - 1).clamp_min(0) * NOISE
    return (sigma * torch.randn(pieces.shape, generator=draw)).to(pieces.device)


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
