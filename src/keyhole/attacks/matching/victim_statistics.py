"""The batch statistics that several victims uploaded, as their matcher takes them."""

from __future__ import annotations

from collections.abc import Sequence

from keyhole.attacks.matching.gradients.anchored_norm import KnownMoments, KnownStatistics
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.uploaded_statistics import (
    StatisticsUse,
    read_statistics,
    shares_statistics,
    stack_statistics,
)
from keyhole.threat import Observation


def read_moments(observation: Observation, problem: MatchingProblem) -> list[KnownMoments] | None:
    """The moments that a victim uploaded, by BatchNorm; None if there are none, or odd ones.

    Args:
        observation: What the server observed of the victim.
        problem: What the victims have in common.
    """
    change = observation.update.change
    if not shares_statistics(problem.model, change, observation.knowledge):
        return None
    return read_statistics(problem.norms, change, steps=problem.steps, batch=problem.local_batch)


def all_make_sense(observations: Sequence[Observation], problem: MatchingProblem) -> bool:
    """Whether what every victim uploaded can be the statistics of a batch.

    Args:
        observations: What the server observed of each victim.
        problem: What they have in common.
    """
    return all(read_moments(each, problem) is not None for each in observations)


def stack_uploaded(
    observations: Sequence[Observation], problem: MatchingProblem, use: StatisticsUse
) -> KnownStatistics | None:
    """The batch statistics of several victims; None: unknown, or to be ignored.

    Args:
        observations: What the server observed of each victim.
        problem: What they have in common.
        use: What the attack does with the statistics.
    """
    if not problem.norms or use == "ignored":
        return None
    found = [read_moments(each, problem) for each in observations]
    moments = [each for each in found if each is not None]
    assert len(moments) == len(found)
    return stack_statistics(
        moments,
        problem.norms,
        steps=problem.steps,
        anchored=problem.steps == 1 and use in ("auto", "anchored", "both"),
        like=problem.like,
    )
