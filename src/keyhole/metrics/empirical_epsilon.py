"""A lower bound on epsilon from guesses in one run (Steinke, Nasr and Jagielski 2023).

Each of m canaries is in or out by a fair coin. An auditor who sees what the mechanism returns
guesses r of these coins, abstains from the rest, and is right v times. If the mechanism is
(epsilon, delta)-private, then by their Theorem 5.2

    P[V >= v] <= P[W >= v] + 2 m delta max_{1 <= i <= v} P[v > W >= v - i] / i,

with W ~ Binomial(r, e^epsilon / (1 + e^epsilon)). Every epsilon for which the right side is below
0.05 is refuted with 95% confidence. r must not depend on the outcome: several choices of r share
the 5% equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

SHARES = (0.9, 0.5, 0.2, 0.1, 0.05)
"""Of how many canaries the coins are guessed, as shares of all; fixed before the run. Not of all:
half of the guesses are "in", and chance hardly ever puts exactly half of the canaries in."""
BISECTIONS = 40


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon.

    Args:
        epsilon: The bound; 0 if nothing is refuted.
        guesses: How many coins were guessed, in the choice that gave the bound.
        correct: How many of these guesses were right.
    """

    epsilon: float
    guesses: int
    correct: int


def compute_p_value(
    canaries: int, guesses: int, correct: int, epsilon: float, delta: float
) -> float:
    """The largest probability of so many right guesses under (epsilon, delta)-privacy.

    Args:
        canaries: m, in and out.
        guesses: r, without abstentions.
        correct: v.
        epsilon: The budget that is doubted.
        delta: Its delta.
    """
    right = 1 / (1 + np.exp(-epsilon))
    tail = float(binom.sf(correct - 1, guesses, right))
    if delta == 0 or correct == 0:
        return min(1.0, tail)
    below = binom.pmf(np.arange(correct - 1, -1, -1), guesses, right)
    densest = float((np.cumsum(below) / np.arange(1, correct + 1)).max())
    return min(1.0, tail + 2 * canaries * delta * densest)


def bound_epsilon(
    canaries: int, guesses: int, correct: int, *, delta: float, doubt: float = 0.05
) -> float:
    """The largest epsilon that is refuted.

    Args:
        canaries: m, in and out.
        guesses: r, without abstentions.
        correct: v.
        delta: The delta of the budget.
        doubt: One minus the confidence.

    >>> round(bound_epsilon(1000, 100, 75, delta=1e-4), 3)  # Appendix D of the paper
    0.673
    """
    low, high = 0.0, 1.0
    if compute_p_value(canaries, guesses, correct, low, delta) >= doubt:
        return 0.0
    while compute_p_value(canaries, guesses, correct, high, delta) < doubt:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        refuted = compute_p_value(canaries, guesses, correct, middle, delta) < doubt
        low, high = (middle, high) if refuted else (low, middle)
    return low


def bound_by_scores(
    scores: Sequence[float], inside: Sequence[bool], *, delta: float, confidence: float = 0.95
) -> EpsilonBound:
    """The best bound that scores give: the highest are guessed to be in, the lowest to be out.

    Args:
        scores: One for each canary, higher if it seems to be in.
        inside: Whether each canary was in.
        delta: The delta of the budget.
        confidence: Of the bound.
    """
    known = np.asarray(inside, dtype=bool)[np.argsort(np.asarray(scores), kind="stable")]
    doubt, found = (1 - confidence) / len(SHARES), []
    for share in SHARES:
        half = round(share * len(known)) // 2
        right = int((~known[:half]).sum()) + int(known[len(known) - half :].sum())
        epsilon = bound_epsilon(len(known), 2 * half, right, delta=delta, doubt=doubt)
        found.append(EpsilonBound(epsilon, 2 * half, right))
    return max(found, key=lambda bound: bound.epsilon)


def find_largest_bound(canaries: int, *, delta: float, confidence: float = 0.95) -> float:
    """The bound if every guess were right: no run with so many canaries can give a larger one.

    Args:
        canaries: m, in and out.
        delta: The delta of the budget.
        confidence: Of the bound.
    """
    doubt = (1 - confidence) / len(SHARES)
    counts = [2 * (round(share * canaries) // 2) for share in SHARES]
    return max(bound_epsilon(canaries, n, n, delta=delta, doubt=doubt) for n in counts)
