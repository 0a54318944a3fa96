"""Iterative attacks that end after some seconds, with as many iterations as fit."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from keyhole.attacks import Gifd, InvertingGradients, Matching, Reconstruction
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.threat import Observation

TIMED = 6
"""Iterations that are run to measure how long one takes."""
ENOUGH = 100
"""Iterations, over all stages, below which an attack that read nothing has not been tried."""
SHARE = 0.9
"""The part of the time that iterations are planned to take."""


class TimedCheckpointer(NullCheckpointer):
    """A checkpointer that ends an attack after ``seconds`` and knows how long iterations took."""

    def __init__(self, seconds: float) -> None:
        self.end = self.deadline = time.monotonic() + seconds
        self.times: list[tuple[int, float]] = []

    def watch(self, done: int, total: int, text: str) -> None:
        self.times.append((done, time.monotonic()))

    @property
    def seconds_left(self) -> float:
        return self.end - time.monotonic()

    @property
    def seconds_per_iteration(self) -> float:
        """Infinite if not even one iteration was seen."""
        if not self.times or self.times[-1][0] == 0:
            return float("inf")
        (_, began), (done, ended) = self.times[0], self.times[-1]
        return max((ended - began) / done, 1e-9)


@dataclass(frozen=True)
class Attempt:
    """What an attack found in the time it had.

    Args:
        found: The reconstruction.
        iterations: How many iterations it took.
        enough: Whether it ran for so long that finding nothing says something.
    """

    found: Reconstruction
    iterations: int
    enough: bool


def attempt(attack: Matching, observation: Observation, seconds: float) -> Attempt:
    """Attacks one client for at most ``seconds``, but for one iteration at least."""
    checkpointer = TimedCheckpointer(seconds)
    (trial,) = limit_iterations(attack, TIMED).on_many([observation], checkpointer)
    fit = int(SHARE * checkpointer.seconds_left / checkpointer.seconds_per_iteration)
    if fit <= TIMED:
        return Attempt(trial, count_iterations(trial), enough=False)
    (found,) = limit_iterations(attack, fit).on_many([observation], checkpointer)
    done = count_iterations(found)
    ended_itself = fit >= ENOUGH and checkpointer.seconds_left > 0
    return Attempt(found, done, enough=done >= ENOUGH or ended_itself)


def count_iterations(found: Reconstruction) -> int:
    return int(found.diagnostics.get("iterations", 0))


def limit_iterations(attack: Matching, iterations: int) -> Matching:
    """The attack with at most so many iterations in all.

    What depends on their number is scaled with it: a schedule's patience, a stage's share.
    """
    if isinstance(attack, Gifd):
        each = min(attack.iterations, max(1, iterations // attack.stages))
        return replace(attack, iterations=each)
    count = max(1, min(attack.iterations, iterations))
    if isinstance(attack, InvertingGradients):
        patience = max(1, attack.patience * count // attack.iterations)
        return replace(attack, iterations=count, patience=patience)
    return replace(attack, iterations=count)
