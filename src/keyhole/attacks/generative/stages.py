"""Consecutive runs of the engine, each of which starts where the previous one ended."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.generative.feature_domain import CENTRE, StageFeatures
from keyhole.attacks.matching.engine import START
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.unknowns import ImageUnknown
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.state import State
from keyhole.attacks.matching.victim_group import VictimGroup


class SearchStage:
    """One run of the engine; victims start at the best images of the previous stage."""

    runner: Runner

    def __init__(
        self,
        group: VictimGroup,
        parts: MatchingParts,
        iterations: int,
        previous: SearchStage | None,
    ) -> None:
        self.group = group.with_parts(parts)
        self.parts, self.iterations, self.previous = parts, iterations, previous

    def run(self, checkpointer: Checkpointer) -> None:
        """Runs the stage for all victims."""
        self.runner = self.group.make_runner(self.iterations, checkpointer, self.known_values)
        self.runner.run()

    def known_values(self, victims: Sequence[int]) -> State:
        """What is known about some victims, with their starting values from the previous stage."""
        known = self.group.known_values(victims)
        if self.previous is None:
            return known
        images = self.parts.images
        start = self.previous.starting_values(victims, images)
        if isinstance(images, StageFeatures):
            known[CENTRE] = images.split(start[images.name])[0].contiguous()
        return known | {START + name: value for name, value in start.items()}

    def starting_values(self, victims: Sequence[int], images: ImageUnknown) -> State:
        """The best values of this stage, converted to the ``images`` unknown of the next stage."""
        outcomes = [self.runner.outcomes[victim].best for victim in victims]
        best = {name: torch.stack([o[name] for o in outcomes]) for name in outcomes[0]}
        own = self.parts.images
        assert isinstance(own, StageFeatures)
        value = best.pop(own.name)
        if isinstance(images, StageFeatures):
            return {**best, images.name: own.advance(value)}
        return {**best, images.name: own.render(value, self.group.problem)}

    def reconstruct(self, number: int) -> Reconstruction:
        """This stage's reconstruction of one observation."""
        return self.group.reconstruct(number, self.runner)
