"""Belief propagation: what all seams together say of every piece in every cell of a puzzle.

One solver for both kinds of puzzle: patches that were shuffled among some cells of an image (MJP),
and blocks that were shuffled inside every region of many images (CSVAR). A :class:`Puzzle` says
which cells adjoin and what its pieces cost; all else is here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import torch
from torch import Tensor

Index = tuple[slice | EllipsisType | Tensor, ...]

FROM_LEFT, FROM_RIGHT, FROM_ABOVE, FROM_BELOW = range(4)
"""The sides on which a cell hears its neighbours; the opposite of side s is ``s ^ 1``."""
DAMPING = 0.3
"""The share of the last message in the next, so that neighbours do not swing against each other."""
TINY = 1e-30
FAINTEST = -30.0
"""The log of the least that a message may say of a piece."""


@dataclass(frozen=True)
class Link:
    """Cells, and their neighbours to the right (``side`` FROM_LEFT) or below (FROM_ABOVE)."""

    side: int
    """On which the second cells hear the first."""
    first: Index
    second: Index
    """Both of ``[*cells, pieces]``."""
    costs: Tensor
    """``[..., pieces, pieces]``: a piece of the first cells (row) beside one of the second."""
    speaks: Tensor | None = None
    """Bool; False where the seam is known and says nothing."""


class Puzzle(ABC):
    """Cells, the pieces that may lie in them, and the seams between them."""

    links: Sequence[Link]
    silence: Tensor
    """Zeros ``[4, *cells, pieces]``: nothing was heard yet."""
    balancing: tuple[int, int] = (3, 10)
    """How often prices are raised in each round, and after the last."""

    @abstractmethod
    def logits(self, heard: Tensor, temperature: float) -> Tensor:
        """``[..., n cells, n pieces]``: what was ``heard [*cells, pieces]``, less the costs alone.

        Cells of the same leading indices hold the same n pieces, each in one cell.
        """


def beliefs(puzzle: Puzzle, temperatures: Sequence[float]) -> Tensor:
    """P(piece in cell), ``[..., n cells, n pieces]``; rows and columns sum to about one.

    One round of messages for each temperature T of the schedule, with all costs over T. A
    cell tells its neighbour what it believes of its own piece, less what that neighbour said of
    it, carried over the seam:

        message(q) = sum_p P(p) / heard(p) exp(-cost(p, q) / T).

    That each piece lies in one cell only is kept by balancing: a price per piece, raised until the
    cells' beliefs in it sum to one.
    """
    each, last = puzzle.balancing
    heard = puzzle.silence
    logits = puzzle.logits(heard.sum(0), temperatures[0])
    price = torch.zeros_like(logits[..., :1, :])
    for temperature in temperatures:
        logits = puzzle.logits(heard.sum(0), temperature)
        price = balance(logits, price, each)
        said = messages(puzzle.links, (logits - price).view(heard.shape[1:]), heard, temperature)
        heard = DAMPING * heard + (1 - DAMPING) * said.clamp_min_(FAINTEST)
    return torch.softmax(logits - balance(logits, price, last), -1)


def messages(links: Sequence[Link], logits: Tensor, heard: Tensor, temperature: float) -> Tensor:
    """What cells hear on their four sides, ``[4, *cells, pieces]``, as logs."""
    said = torch.zeros_like(heard)
    for link in links:
        there, back = link.side, link.side ^ 1
        seam = torch.exp(-link.costs / temperature)
        forth = carry(logits[link.first] - heard[back][link.first], seam)
        home = carry(logits[link.second] - heard[there][link.second], seam.mT)
        if link.speaks is not None:
            forth, home = forth * link.speaks, home * link.speaks
        said[there][link.second] = forth
        said[back][link.first] = home
    return said


def carry(logits: Tensor, seam: Tensor) -> Tensor:
    """Messages of cells ``[..., *cells, pieces]`` over seams ``[..., pieces, pieces]``, as logs."""
    said = torch.softmax(logits, -1).flatten(seam.ndim - 2, -2) @ seam
    message = (said + TINY).log_()
    message -= message.amax(-1, keepdim=True)
    return message.view(logits.shape)


def balance(logits: Tensor, price: Tensor, rounds: int) -> Tensor:
    """Prices of pieces ``[..., 1, n]`` at which the cells' beliefs in each sum to about one."""
    for _ in range(rounds):
        wanted = torch.softmax(logits - price, -1).sum(-2, keepdim=True)
        price = price + (wanted + TINY).log()
    return price - price.mean(-1, keepdim=True)


def surprise(costs: Tensor, may: Tensor, unforeseen: float) -> Tensor:
    """``-log P(q beside p) - log P(p beside q)`` for each pair, ``[..., n, n]``."""
    return surprise_along(costs, may, unforeseen, -1) + surprise_along(costs, may, unforeseen, -2)


def surprise_along(costs: Tensor, may: Tensor, unforeseen: float, axis: int) -> Tensor:
    """Minus the log-probability of each entry among those that ``may`` be along ``axis``.

    ``costs`` and ``may`` (bool) are ``[..., n, n]``. The share ``unforeseen`` of the probability
    is spread evenly over the possible ones, the rest follows the likelihood ``exp(-costs)``; so no
    single seam, however bad, outweighs many good ones.
    """
    evenly = unforeseen / may.sum(axis, keepdim=True).clamp_min(1).to(costs)
    likely = torch.softmax((-costs).masked_fill(~may, -torch.inf), axis).nan_to_num(0.0)
    return -((1 - unforeseen) * likely + evenly).log()
