"""Belief propagation: what all seams together say of every patch in every cell."""

from __future__ import annotations

import numpy as np

from keyhole.attacks.unshuffle.costs import Costs
from keyhole.attacks.unshuffle.seams import Array

TINY = 1e-30
KEPT = 0.3
"""The share of the last message in the next, so that neighbours do not swing against each other."""
BALANCING = 5


def beliefs(costs: Costs, temperatures: Array) -> Array:
    """P(patch p lies in cell i), ``[m, m]``, rows and columns summing to about one.

    One round of messages for each temperature T of the schedule, with all costs over T. A
    cell tells its neighbour in direction d what it believes of its own patch, less what that
    neighbour said of it, carried over the seam:

        message_d(q) = sum_p P_i(p) / heard_d(p) exp(-beside_d(p, q) / T).

    That each patch lies in one cell only is kept by balancing: a price per patch, raised until
    the cells' beliefs in it sum to one.
    """
    size = costs.size
    heard = np.zeros((4, size, size))
    price: Array = np.zeros(size)
    senders = [np.flatnonzero(cells < size) for cells in costs.neighbours]
    lowest = costs.beside.min()
    belief: Array = np.full((size, size), 1 / size)
    for temperature in temperatures:
        carry = np.exp((lowest - costs.beside) / temperature)
        logits = heard.sum(0) - costs.alone / temperature
        belief, price = balanced(logits, price)
        told = np.zeros_like(heard)
        for direction, cells in enumerate(senders):
            without = softmax(logits[cells] - price - heard[direction, cells])
            message = np.log(without @ carry[direction] + TINY)
            message -= message.max(1, keepdims=True)
            told[direction ^ 1, costs.neighbours[direction, cells]] = message
        heard = KEPT * heard + (1 - KEPT) * told
    return belief


def balanced(logits: Array, price: Array) -> tuple[Array, Array]:
    """Rows of probabilities whose columns sum to about one, and the prices that make them so."""
    for _ in range(BALANCING):
        belief = softmax(logits - price)
        price = price + np.log(belief.sum(0) + TINY)
    return softmax(logits - price), price - price.mean()


def softmax(logits: Array) -> Array:
    """Probabilities along the rows."""
    weight = np.exp(logits - logits.max(1, keepdims=True))
    found: Array = weight / weight.sum(1, keepdims=True)
    return found
