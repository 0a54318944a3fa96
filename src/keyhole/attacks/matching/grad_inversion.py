"""GradInversion (Yin et al. 2021): several searches that are drawn to what they agree on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.matching.attack import Count, LabelSource, Matching, Weight
from keyhole.attacks.matching.engine import START
from keyhole.attacks.matching.group_consistency import agree
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.objectives import SquaredError
from keyhole.attacks.matching.parts.optimisers import Adam, CosineDecay
from keyhole.attacks.matching.parts.priors import (
    BatchNormStatistics,
    Consensus,
    Magnitude,
    TotalVariation,
)
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.precision import use_precision
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.shared_checkpointer import SharedCheckpointer, merge_stages
from keyhole.attacks.matching.state import State
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.threat import Observation


@dataclass(frozen=True, kw_only=True)
class GradInversion(Matching):
    """Squared error with BatchNorm statistics, total variation and small pixels, by Adam.

    With several ``trials`` and ``rounds``, all searches of a client are registered after each round
    and averaged; the next round starts where each search was and is drawn to that mean.

    Args:
        iterations: The most iterations of each round.
        tv: Weight of the images' total variation.
        magnitude: Weight of the mean squared pixel.
        statistics: Weight of the distance of batch statistics to the BatchNorms' running ones.
        rounds: Rounds of searches; those after the first have the consensus among their priors.
        consistency: Weight of the distance to the consensus.
        noise: Noise on every step, in units of the learning rate.
    """

    tv: Weight = 1e-4
    magnitude: Weight = 1e-6
    statistics: Weight = 1e-3
    rounds: Count = 1
    consistency: Weight = 0.01
    noise: Weight = 0.0
    labels: LabelSource = "inferred"

    name: ClassVar[str] = "gradinversion"
    summary: ClassVar[str] = "matches gradients and the BatchNorms' statistics"
    paper: ClassVar[str] = "Yin et al. 2021 (GradInversion)"
    needs: ClassVar[str] = "a linear last layer; best with BatchNorm and trained weights"
    published: ClassVar[dict[str, Any]] = {
        "iterations": 20_000,
        "statistics": 0.1,
        "trials": 8,
        "rounds": 2,
        "noise": 0.2,
    }

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        return MatchingParts(
            objective=SquaredError(relative=True),
            images=Pixels(),
            optimiser=Adam(lr=self.lr, noise=self.noise),
            schedule=CosineDecay(warm_up=0.0025),
            priors=(
                TotalVariation(self.tv),
                Magnitude(self.magnitude),
                BatchNormStatistics(self.statistics),
            ),
        )

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        if self.rounds == 1 or not observations:
            yield from super().stream(observations, checkpointer)
            return
        first = VictimGroup(self, observations)
        drawn = replace(first.parts, priors=(*first.parts.priors, Consensus(self.consistency)))
        shared = SharedCheckpointer(checkpointer, [self.iterations] * self.rounds)
        stages: list[ConsensusRound] = []
        with use_precision(self.precision):
            for number in range(self.rounds):
                group = first if number == 0 else first.with_parts(drawn)
                stage = ConsensusRound(group, stages[-1] if stages else None)
                stage.run(self.iterations, shared.stage(number))
                stages.append(stage)
        for number in range(len(observations)):
            yield merge_stages([each.group.reconstruct(number, each.runner) for each in stages])


class ConsensusRound:
    """One round of all searches, which start where those of the round before ended."""

    runner: Runner

    def __init__(self, group: VictimGroup, previous: ConsensusRound | None) -> None:
        self.group, self.previous = group, previous

    def run(self, iterations: int, checkpointer: Checkpointer) -> None:
        """Runs the round for all victims."""
        self.runner = self.group.make_runner(iterations, checkpointer, self.known_values)
        self.runner.run()

    def known_values(self, victims: Sequence[int]) -> State:
        """What is known about some victims; after the first round also the consensus."""
        known = self.group.known_values(victims)
        if self.previous is None:
            return known
        like, outcomes = self.group.problem.like, self.previous.runner.outcomes
        for name in outcomes[victims[0]].best:
            start = torch.stack([outcomes[victim].best[name] for victim in victims])
            known[START + name] = start.to(like)
        consensus = torch.stack([self.previous.consensus(victim) for victim in victims])
        return known | {"consensus": consensus.to(like)}

    def consensus(self, victim: int) -> Tensor:
        """What all searches of a victim's client agree on after this round, ``[B, C, H, W]``."""
        trials = self.group.attack.trials
        every = range(victim // trials * trials, (victim // trials + 1) * trials)
        outcomes = [self.runner.outcomes[each] for each in every]
        name = self.group.parts.images.name
        return agree([each.best[name] for each in outcomes], [each.loss for each in outcomes])
