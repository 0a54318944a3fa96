"""What it costs that two items lie side by side, for all items that may.

Both sides of a seam are continued half way to the middle, by a line through their last two pixels;
there they should meet. Colours are turned to axes along which the image's gradients are
uncorrelated, and measured in their standard deviations: where an image's hues change slowly, hues
say most.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.belief import surprise
from keyhole.attacks.jigsaw.regions.cells import CELLS, Cells

CONTINUED = 0.4
"""How far a line is continued, in pixels: 0.5 is the middle, less trusts slopes less."""
LEVEL = 0.5
"""A squared misfit of an axis below this tells little; above it, costs grow as its logarithm."""
TEMPERATURE = 1.5
UNFORESEEN = 0.1
"""The share of seams at which anything may meet, such as an object's edge."""
APART = 60.0
"""Nats for items that cannot be neighbours."""
STEADY = 1e-3
"""The least standard deviation of a gradient: a quarter of a grey level."""


@dataclass(frozen=True)
class Seams:
    """Costs in nats, the first item (next to last axis) left of or above the second (last).

    ``right``, ``below``: inside a region, ``[B, R, Q, 16, 16]``; ``next_right [B, R, Q - 1, 16,
    16]`` and ``next_below [B, R - 1, Q, 16, 16]``: between a region's items and its neighbour's.
    """

    right: Tensor
    below: Tensor
    next_right: Tensor
    next_below: Tensor

    def total(self, order: Tensor) -> Tensor:
        """The cost ``[B]`` of cells that show the items ``order [B, R, Q, 16]``.

        Seams that no arrangement can change count the same for all.
        """
        grid = order.view(*order.shape[:-1], 4, 4)
        pairs = (
            (self.right, grid[..., :3], grid[..., 1:]),
            (self.below, grid[..., :3, :], grid[..., 1:, :]),
            (self.next_right, grid[:, :, :-1, :, 3:], grid[:, :, 1:, :, :1]),
            (self.next_below, grid[:, :-1, :, 3:], grid[:, 1:, :, :1]),
        )
        return sum_of([look_up(cost, a, b) for cost, a, b in pairs])


def sum_of(parts: list[Tensor]) -> Tensor:
    return torch.stack(parts).sum(0)


def look_up(costs: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """``costs[..., first, second]`` summed over all but the batch, ``[B]``."""
    place = (first * CELLS + second).flatten(3)
    return costs.flatten(-2).gather(-1, place).flatten(1).sum(1)


def seams(cells: Cells, items: Tensor) -> Seams:
    """The costs of ``items [B, C, R, Q, 16, side, side]``, whose planes have been matched."""
    fields = in_own_axes(cells, items)
    rights, lefts = borders(fields)
    bottoms, tops = borders(fields.transpose(-1, -2))

    def costs(one: Tensor, two: Tensor, may: Tensor) -> Tensor:
        likely = surprise(misfit(one, two) / TEMPERATURE, may, UNFORESEEN)
        return torch.where(may, likely / 2, APART)

    return Seams(
        right=costs(rights, lefts, may_adjoin(cells, across=True)),
        below=costs(bottoms, tops, may_adjoin(cells, across=False)),
        next_right=costs(rights[:, :, :-1], lefts[:, :, 1:], may_meet(cells, across=True)),
        next_below=costs(bottoms[:, :-1], tops[:, 1:], may_meet(cells, across=False)),
    )


def in_own_axes(cells: Cells, items: Tensor) -> Tensor:
    """``[B, R, Q, 16, C, side, side]`` in standard deviations of each image's gradients.

    Single pixels have no gradients; their deviations from the region's mean stand in.
    """
    fields = items.movedim(1, 4)
    if cells.side > 1:
        steps = [fields.diff(dim=axis).flatten(-2) for axis in (-1, -2)]
    else:
        steps = [(fields - fields.mean(3, keepdim=True)).flatten(-2)]
    samples = torch.cat(steps, -1) * cells.real[..., None, None]
    rows = samples.movedim(4, 1).flatten(2)
    count = max(1, samples.shape[-1] * int(cells.real.sum()))
    spread, axes = torch.linalg.eigh((rows @ rows.transpose(1, 2) / count).double())
    turn = axes / spread.clamp_min(STEADY**2).sqrt()[:, None]
    return torch.einsum("bcd,brqicyx->brqidyx", turn.to(fields), fields)


def borders(fields: Tensor) -> tuple[Tensor, Tensor]:
    """What follows on the right and precedes on the left of items, ``[B, R, Q, 16, C, side]``."""
    if fields.shape[-1] == 1:
        return fields[..., 0], fields[..., 0]
    ahead = torch.lerp(fields[..., -2], fields[..., -1], 1 + CONTINUED)
    behind = torch.lerp(fields[..., 1], fields[..., 0], 1 + CONTINUED)
    return ahead, behind


def misfit(one: Tensor, two: Tensor) -> Tensor:
    """Of borders ``[..., 16, C, side]``, ``[..., 16, 16]``:

    side / 2 * sum over axes of log(1 + |one - two|^2 / LEVEL).

    So no axis, however large its difference, outweighs many.
    """
    side = one.shape[-1]
    gaps = one[..., :, None, :, :] - two[..., None, :, :, :]
    squares = gaps.square_().sum(-1)
    return torch.log1p(squares / LEVEL).sum(-1) * (side / 2)


def may_adjoin(cells: Cells, *, across: bool) -> Tensor:
    """Which pairs of a region's items may be neighbours, bool ``[B, R, Q, 16, 16]``.

    Fine: any two. Coarse: on the facing sides of two blocks, and of one line.
    """
    along, aside, number = halves(cells, across=across)
    faces = (along[:, None] == 1) & (along == 0) & (aside[:, None] == aside)
    block = number // 8 * 2 + number % 4 // 2
    blocks = faces & (block[:, None] != block)
    pairs = torch.where(cells.coarse[..., None, None], blocks, number[:, None] != number)
    return pairs & cells.real[..., :, None] & cells.real[..., None, :]


def may_meet(cells: Cells, *, across: bool) -> Tensor:
    """Which pairs may be neighbours at the border of a region and the next one."""
    along, aside, _ = halves(cells, across=across)
    axis = 2 if across else 1
    count = cells.coarse.shape[axis] - 1
    one, two = (cells.coarse.narrow(axis, i, count)[..., None, None] for i in (0, 1))
    here, there = (cells.real.narrow(axis - 1, i, count) for i in (0, 1))
    facing = (~one | (along[:, None] == 1)) & (~two | (along == 0))
    in_line = ~(one & two) | (aside[:, None] == aside)
    return facing & in_line & here[..., :, None] & there[..., None, :]


def halves(cells: Cells, *, across: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Each item's half of its coarse block along the axis and aside of it, and its number."""
    number = torch.arange(CELLS, device=cells.coarse.device)
    row, column = number // 4 % 2, number % 2
    return (column, row, number) if across else (row, column, number)
