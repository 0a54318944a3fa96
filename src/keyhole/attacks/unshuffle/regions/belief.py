"""Belief propagation on the cells of all regions of all images at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from keyhole.attacks.unshuffle.regions.cells import CELLS, Cells
from keyhole.attacks.unshuffle.regions.seams import Seams

KEPT = 0.3
"""The share of the last message in the next, so that neighbours do not swing against each other."""
BALANCING, LAST_BALANCING = 3, 10
TINY = 1e-30
FAINTEST = -30.0
"""The log of the least that a message may say of an item."""


def beliefs(
    seams: Seams, cells: Cells, alone: Tensor | None, temperatures: Sequence[float]
) -> Tensor:
    """P(item in cell), ``[B, R, Q, 16 cells, 16 items]``; rows and columns sum to about one.

    One round of messages at each temperature T. A cell tells its neighbour what it believes of
    its own item, less what that neighbour said of it, carried over the seam:

        message(q) = sum_p P(p) / heard(p) exp(-seam(p, q) / T).

    Four cells of a coarse block speak as one. That each item lies in one cell is kept by prices.
    ``alone``: further costs of items in cells, ``[B, R, Q, 16, 16]``.
    """
    cannot = cells.cannot
    heard = cannot.new_zeros(4, *cannot.shape[:-2], 4, 4, CELLS)
    price = torch.zeros_like(cannot[..., :1, :])
    logits = -cannot
    speaks = [~silent for silent in silences(cells)]
    for temperature in temperatures:
        own = heard.sum(0).flatten(-3, -2)
        if alone is not None:
            own = own - alone / temperature
        logits = cells.as_blocks(own) - cannot
        price = balanced(logits, price, BALANCING)
        told = messages((logits - price).view(heard[0].shape), heard, seams, temperature)
        for direction, open_ in enumerate(speaks):
            told[direction] *= open_
        heard = KEPT * heard + (1 - KEPT) * told.clamp_min_(FAINTEST)
    return torch.softmax(logits - balanced(logits, price, LAST_BALANCING), -1)


def messages(logits: Tensor, heard: Tensor, seams: Seams, temperature: float) -> Tensor:
    """What cells hear from the left, the right, above and below: ``[4, B, R, Q, 4, 4, 16]``."""
    told = torch.zeros_like(heard)
    to_right, to_left, down, up = (logits - heard[i] for i in (1, 0, 3, 2))
    right, below, next_right, next_below = (
        torch.exp(-costs / temperature)
        for costs in (seams.right, seams.below, seams.next_right, seams.next_below)
    )
    from_left, from_right, from_above, from_below = told
    from_left[..., 1:, :] = carried(to_right[..., :3, :], right)
    from_right[..., :3, :] = carried(to_left[..., 1:, :], right.mT)
    from_above[..., 1:, :, :] = carried(down[..., :3, :, :], below)
    from_below[..., :3, :, :] = carried(up[..., 1:, :, :], below.mT)
    from_left[:, :, 1:, :, :1] = carried(to_right[:, :, :-1, :, 3:], next_right)
    from_right[:, :, :-1, :, 3:] = carried(to_left[:, :, 1:, :, :1], next_right.mT)
    from_above[:, 1:, :, :1] = carried(down[:, :-1, :, 3:], next_below)
    from_below[:, :-1, :, 3:] = carried(up[:, 1:, :, :1], next_below.mT)
    return told


def carried(logits: Tensor, seam: Tensor) -> Tensor:
    """The messages of cells ``[..., down, across, 16]`` over seams ``[..., 16, 16]``, as logs."""
    said = torch.softmax(logits, -1).flatten(-3, -2) @ seam
    message = (said + TINY).log_()
    message -= message.amax(-1, keepdim=True)
    return message.view(logits.shape)


def balanced(logits: Tensor, price: Tensor, rounds: int) -> Tensor:
    """Prices of items ``[..., 1, 16]`` at which the cells' beliefs in each sum to about one."""
    for _ in range(rounds):
        wanted = torch.softmax(logits - price, -1).sum(-2, keepdim=True)
        price = price + (wanted + TINY).log()
    return price - price.mean(-1, keepdim=True)


def silences(cells: Cells) -> list[Tensor]:
    """Cells that hear nothing from the left, right, above, below: bool ``[B, R, Q, 4, 4, 1]``.

    Inside a coarse block all is known.
    """
    odd = torch.arange(4, device=cells.coarse.device) % 2 == 1
    coarse = cells.coarse[..., None, None, None]
    columns, rows = odd[None, :, None], odd[:, None, None]
    shape = (4, 4, 1)
    return [coarse & side.expand(shape) for side in (columns, ~columns, rows, ~rows)]
