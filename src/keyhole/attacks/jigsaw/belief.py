"""Belief propagation: what all seams together say about every piece in every cell of a puzzle.

One solver for both kinds of puzzle: patches that were shuffled among some cells of an image (MJP),
and blocks that were shuffled inside every region of many images (CSVAR). A :class:`Puzzle` says
which cells adjoin and what its pieces cost; everything else is here.
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
"""The sides from which a cell gets messages; the opposite of side s is ``s ^ 1``."""
DAMPING = 0.3
"""The share of the last message in the next, so that neighbours do not swing against each other."""
TINY = 1e-30
MIN_LOG_MESSAGE = -30.0
"""The log of the least that a message may say about a piece."""


@dataclass(frozen=True)
class Link:
    """Cells, and their neighbours to the right (``side`` FROM_LEFT) or below (FROM_ABOVE).

    Args:
        side: The side from which the second cells get the messages of the first.
        first: Index of the first cells in ``[*cells, pieces]``.
        second: Index of the second cells, likewise.
        costs: ``[..., pieces, pieces]``: a piece in the first cells (row) beside one in the second.
        informative: Bool; False where the seam is known, and messages over it say nothing.
    """

    side: int
    first: Index
    second: Index
    costs: Tensor
    informative: Tensor | None = None


class Puzzle(ABC):
    """Cells, the pieces that may lie in them, and the seams between them."""

    links: Sequence[Link]
    no_messages: Tensor
    """Zeros ``[4, *cells, pieces]``: the messages before the first round."""
    balancing: tuple[int, int] = (3, 10)
    """How often prices are adjusted in each round, and after the last."""

    @abstractmethod
    def logits(self, messages: Tensor, temperature: float) -> Tensor:
        """``[..., n cells, n pieces]``: ``messages [*cells, pieces]`` less the unary costs.

        Cells of the same leading indices hold the same n pieces, each in one cell.
        """


def compute_beliefs(puzzle: Puzzle, temperatures: Sequence[float]) -> Tensor:
    """P(piece in cell), ``[..., n cells, n pieces]``; rows and columns sum to about one.

    Each temperature T of the schedule is one round of messages with all costs divided by T. A cell
    tells its neighbour what it believes about its own piece, less what that neighbour said about
    it, carried over the seam:

        message(q) = sum_p P(p) / incoming(p) exp(-cost(p, q) / T).

    Balancing makes each piece lie in one cell only: every piece has a price, which is adjusted
    until the cells' beliefs in the piece sum to one.
    """
    each, last = puzzle.balancing
    incoming = puzzle.no_messages
    logits = puzzle.logits(incoming.sum(0), temperatures[0])
    prices = torch.zeros_like(logits[..., :1, :])
    for temperature in temperatures:
        logits = puzzle.logits(incoming.sum(0), temperature)
        prices = balance_prices(logits, prices, each)
        priced = (logits - prices).view(incoming.shape[1:])
        sent = compute_messages(puzzle.links, priced, incoming, temperature)
        incoming = DAMPING * incoming + (1 - DAMPING) * sent.clamp_min_(MIN_LOG_MESSAGE)
    return torch.softmax(logits - balance_prices(logits, prices, last), -1)


def compute_messages(
    links: Sequence[Link], logits: Tensor, incoming: Tensor, temperature: float
) -> Tensor:
    """The log-messages that cells get from their four sides, ``[4, *cells, pieces]``."""
    sent = torch.zeros_like(incoming)
    for link in links:
        there, back = link.side, link.side ^ 1
        seam = torch.exp(-link.costs / temperature)
        to_second = carry_over_seam(logits[link.first] - incoming[back][link.first], seam)
        to_first = carry_over_seam(logits[link.second] - incoming[there][link.second], seam.mT)
        if link.informative is not None:
            to_second, to_first = to_second * link.informative, to_first * link.informative
        sent[there][link.second] = to_second
        sent[back][link.first] = to_first
    return sent


def carry_over_seam(logits: Tensor, seam: Tensor) -> Tensor:
    """Log-messages of cells ``[..., *cells, pieces]`` over seams ``[..., pieces, pieces]``."""
    carried = torch.softmax(logits, -1).flatten(seam.ndim - 2, -2) @ seam
    message = (carried + TINY).log_()
    message -= message.amax(-1, keepdim=True)
    return message.view(logits.shape)


def balance_prices(logits: Tensor, prices: Tensor, rounds: int) -> Tensor:
    """Prices of pieces ``[..., 1, n]`` at which the cells' beliefs in each sum to about one."""
    for _ in range(rounds):
        demand = torch.softmax(logits - prices, -1).sum(-2, keepdim=True)
        prices = prices + (demand + TINY).log()
    return prices - prices.mean(-1, keepdim=True)


def compute_surprise(costs: Tensor, possible: Tensor, outlier_share: float) -> Tensor:
    """``-log P(q beside p) - log P(p beside q)`` for each pair, ``[..., n, n]``."""
    by_row, by_column = (
        compute_surprise_along(costs, possible, outlier_share, axis) for axis in (-1, -2)
    )
    return by_row + by_column


def compute_surprise_along(
    costs: Tensor, possible: Tensor, outlier_share: float, axis: int
) -> Tensor:
    """Minus the log-probability of each entry among the ``possible`` ones along ``axis``.

    ``costs`` and ``possible`` (bool) are ``[..., n, n]``. The share ``outlier_share`` of the
    probability is spread evenly over the possible entries, the rest follows the likelihood
    ``exp(-costs)``. So no single seam, however bad, outweighs many good ones.
    """
    evenly = outlier_share / possible.sum(axis, keepdim=True).clamp_min(1).to(costs)
    likely = torch.softmax((-costs).masked_fill(~possible, -torch.inf), axis).nan_to_num(0.0)
    return -((1 - outlier_share) * likely + evenly).log()
