"""What it costs that two pieces lie side by side, for all pieces that may.

Both sides of a seam are extrapolated half way to the middle, by a line through their last two
pixels; there they should meet. Colours are turned to axes along which the image's gradients are
uncorrelated, and measured in their standard deviations: where an image's hues change slowly, hues
say most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import compute_surprise
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells

EXTRAPOLATION = 0.4
"""How far a line is continued, in pixels: 0.5 is the middle, less trusts slopes less."""
MISFIT_SCALE = 0.5
"""A squared misfit of an axis below this says little; above it, costs grow as its logarithm."""
TEMPERATURE = 1.5
OUTLIER_SHARE = 0.1
"""The share of seams at which anything may meet, such as an object's edge."""
IMPOSSIBLE_PAIR = 60.0
"""Nats for pieces that cannot be neighbours."""
MIN_DEVIATION = 1e-3
"""The least standard deviation of a gradient: a quarter of a grey level."""


@dataclass(frozen=True)
class RegionSeamCosts:
    """Costs in nats, the first piece (next to last axis) left of or above the second (last).

    Args:
        right: Neighbours from left to right inside a region, ``[B, R, Q, 16, 16]``.
        below: Neighbours from top to bottom inside a region, ``[B, R, Q, 16, 16]``.
        next_right: A piece of a region and one of the region to its right,
            ``[B, R, Q - 1, 16, 16]``.
        next_below: A piece of a region and one of the region below, ``[B, R - 1, Q, 16, 16]``.
    """

    right: Tensor
    below: Tensor
    next_right: Tensor
    next_below: Tensor

    def total(self, order: Tensor) -> Tensor:
        """The cost ``[B]`` of an arrangement; seams that no arrangement can change count too.

        Args:
            order: The number of the piece in each cell, ``[B, R, Q, 16]``.
        """
        grid = order.view(*order.shape[:-1], 4, 4)
        pairs = (
            (self.right, grid[..., :3], grid[..., 1:]),
            (self.below, grid[..., :3, :], grid[..., 1:, :]),
            (self.next_right, grid[:, :, :-1, :, 3:], grid[:, :, 1:, :, :1]),
            (self.next_below, grid[:, :-1, :, 3:], grid[:, 1:, :, :1]),
        )
        return torch.stack([sum_costs(costs, a, b) for costs, a, b in pairs]).sum(0)


def sum_costs(costs: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``costs[..., first, second]`` summed over all but the batch, ``[B]``."""
    place = (first * CELLS + second).flatten(3)
    return costs.flatten(-2).gather(-1, place).flatten(1).sum(1)


def compute_region_seam_costs(cells: Cells, coloured: Tensor) -> RegionSeamCosts:
    """The costs of all pairs of pieces that may be neighbours.

    Args:
        cells: The cells of the shuffled images.
        coloured: Their pieces with matched planes, ``[B, C, R, Q, 16, side, side]``.
    """
    fields = decorrelate_colours(cells, coloured)
    rights, lefts = extrapolate_borders(fields)
    bottoms, tops = extrapolate_borders(fields.transpose(-1, -2))

    def compute(one: Tensor, two: Tensor, possible: Tensor) -> Tensor:
        misfits = compute_border_misfits(one, two) / TEMPERATURE
        surprise = compute_surprise(misfits, possible, OUTLIER_SHARE)
        return torch.where(possible, surprise / 2, IMPOSSIBLE_PAIR)

    return RegionSeamCosts(
        right=compute(rights, lefts, find_inner_pairs(cells, across=True)),
        below=compute(bottoms, tops, find_inner_pairs(cells, across=False)),
        next_right=compute(
            rights[:, :, :-1], lefts[:, :, 1:], find_outer_pairs(cells, across=True)
        ),
        next_below=compute(bottoms[:, :-1], tops[:, 1:], find_outer_pairs(cells, across=False)),
    )


def decorrelate_colours(cells: Cells, coloured: Tensor) -> Tensor:
    """``[B, R, Q, 16, C, side, side]`` in standard deviations of each image's gradients.

    Single pixels have no gradients; their deviations from the region's mean stand in.
    """
    fields = coloured.movedim(1, 4)
    if cells.side > 1:
        steps = [fields.diff(dim=axis).flatten(-2) for axis in (-1, -2)]
    else:
        steps = [(fields - fields.mean(3, keepdim=True)).flatten(-2)]
    samples = torch.cat(steps, -1) * cells.real[..., None, None]
    rows = samples.movedim(4, 1).flatten(2)
    count = max(1, samples.shape[-1] * int(cells.real.sum()))
    variances, axes = torch.linalg.eigh((rows @ rows.transpose(1, 2) / count).double())
    turn = axes / variances.clamp_min(MIN_DEVIATION**2).sqrt()[:, None]
    return torch.einsum("bcd,brqicyx->brqidyx", turn.to(fields), fields)


def extrapolate_borders(fields: Tensor) -> tuple[Tensor, Tensor]:
    """What follows on the right and precedes on the left of pieces, ``[B, R, Q, 16, C, side]``."""
    if fields.shape[-1] == 1:
        return fields[..., 0], fields[..., 0]
    ahead = torch.lerp(fields[..., -2], fields[..., -1], 1 + EXTRAPOLATION)
    behind = torch.lerp(fields[..., 1], fields[..., 0], 1 + EXTRAPOLATION)
    return ahead, behind


def compute_border_misfits(one: Tensor, two: Tensor) -> Tensor:
    """Of borders ``[..., 16, C, side]``, ``[..., 16, 16]``:

    side / 2 * sum over axes of log(1 + |one - two|^2 / MISFIT_SCALE).

    So no axis, however large its difference, outweighs many.
    """
    side = one.shape[-1]
    gaps = one[..., :, None, :, :] - two[..., None, :, :, :]
    squares = gaps.square_().sum(-1)
    return torch.log1p(squares / MISFIT_SCALE).sum(-1) * (side / 2)


def find_inner_pairs(cells: Cells, *, across: bool) -> Tensor:
    """Which pairs of a region's pieces may be neighbours, bool ``[B, R, Q, 16, 16]``.

    In fine regions any two; in coarse ones those on facing sides of two blocks, and in one line.
    """
    along, aside, number = locate_in_blocks(cells, across=across)
    facing = (along[:, None] == 1) & (along == 0) & (aside[:, None] == aside)
    block = number // 8 * 2 + number % 4 // 2
    in_coarse = facing & (block[:, None] != block)
    pairs = torch.where(cells.coarse[..., None, None], in_coarse, number[:, None] != number)
    return pairs & cells.real[..., :, None] & cells.real[..., None, :]


def find_outer_pairs(cells: Cells, *, across: bool) -> Tensor:
    """Which pairs may be neighbours at the border between a region and the next one."""
    along, aside, _ = locate_in_blocks(cells, across=across)
    axis = 2 if across else 1
    count = cells.coarse.shape[axis] - 1
    one, two = (cells.coarse.narrow(axis, i, count)[..., None, None] for i in (0, 1))
    here, there = (cells.real.narrow(axis - 1, i, count) for i in (0, 1))
    facing = (~one | (along[:, None] == 1)) & (~two | (along == 0))
    in_line = ~(one & two) | (aside[:, None] == aside)
    return facing & in_line & here[..., :, None] & there[..., None, :]


def locate_in_blocks(cells: Cells, *, across: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Each piece's half of its coarse block along the axis and aside of it, and its number."""
    number = torch.arange(CELLS, device=cells.coarse.device)
    row, column = number // 4 % 2, number % 2
    return (column, row, number) if across else (row, column, number)
