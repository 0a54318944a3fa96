"""Iterative attacks in so many seconds: as many iterations as fit, and an end in any case."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from keyhole.attacks import Gifd, InvertingGradients, Matching, Reconstruction
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.threat import Observation

MEASURED = 6
"""Iterations from which the time of one is measured."""
ENOUGH = 100
"""Iterations, over all stages, below which an attack that read nothing has not been tried."""
SHARE = 0.9
"""The part of the time that iterations are planned to take."""


class TimedCheckpointer(NullCheckpointer):
    """A checkpointer that ends an attack after ``seconds`` and knows how long iterations took."""

    def __init__(self, seconds: float) -> None:
        self.ends = self.deadline = time.monotonic() + seconds
        self.looks: list[tuple[int, float]] = []

    def watch(self, done: int, total: int, text: str) -> None:
        self.looks.append((done, time.monotonic()))

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    @property
    def each(self) -> float:
        """Seconds per iteration; infinite where not even one was seen."""
        if not self.looks or self.looks[-1][0] == 0:
            return float("inf")
        (_, began), (done, ended) = self.looks[0], self.looks[-1]
        return max((ended - began) / done, 1e-9)


@dataclass(frozen=True)
class Attempt:
    """What an attack saw in the time it had."""

    found: Reconstruction
    iterations: int
    enough: bool
    """Whether it ran for so long that seeing nothing says something."""


def attempt(attack: Matching, seen: Observation, seconds: float) -> Attempt:
    """Attacks one client for at most ``seconds``, but for one iteration at least."""
    checkpointer = TimedCheckpointer(seconds)
    (trial,) = limit_iterations(attack, MEASURED).on_many([seen], checkpointer)
    fit = int(SHARE * checkpointer.left / checkpointer.each)
    if fit <= MEASURED:
        return Attempt(trial, count_iterations(trial), enough=False)
    (found,) = limit_iterations(attack, fit).on_many([seen], checkpointer)
    done = count_iterations(found)
    ended_itself = fit >= ENOUGH and checkpointer.left > 0
    return Attempt(found, done, enough=done >= ENOUGH or ended_itself)


def count_iterations(found: Reconstruction) -> int:
    return int(found.diagnostics.get("iterations", 0))


def limit_iterations(attack: Matching, iterations: int) -> Matching:
    """The attack with so many iterations in all, or its own number where that is less.

    What else depends on their number is scaled with it: a schedule's patience, a stage's share.
    """
    if isinstance(attack, Gifd):
        each = min(attack.iterations, max(1, iterations // attack.stages))
        return replace(attack, iterations=each)
    count = max(1, min(attack.iterations, iterations))
    if isinstance(attack, InvertingGradients):
        patience = max(1, attack.patience * count // attack.iterations)
        return replace(attack, iterations=count, patience=patience)
    return replace(attack, iterations=count)
