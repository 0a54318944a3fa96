"""Gradient inversion over feature domains (Fang et al. 2023, GIFD).

The attack first searches for the generator's codes, then for the input features of the generator's
next stage, starting from those of the best code, and so on. Each stage can produce more images
than the previous one, and starts where that one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.generative.feature_domain import StageFeatures, measure_scales
from keyhole.attacks.generative.prior import load_generator
from keyhole.attacks.generative.stages import SearchStage
from keyhole.attacks.matching.attack import Count, Matching, Positive, Weight
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.parts.objectives import Cosine
from keyhole.attacks.matching.parts.optimisers import Adam, CosineDecay
from keyhole.attacks.matching.parts.priors import Magnitude, TotalVariation
from keyhole.attacks.matching.parts.unknowns import Pixels
from keyhole.attacks.matching.precision import use_precision
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.attacks.matching.shared_checkpointer import SharedCheckpointer, merge_stages
from keyhole.attacks.matching.victim_group import VictimGroup
from keyhole.defenses.capabilities import Capability
from keyhole.errors import KeyholeError
from keyhole.threat import Observation

WARM_UP = 0.05
"""The share of each stage's iterations in which the learning rate rises."""


@dataclass(frozen=True, kw_only=True)
class Gifd(Matching):
    """Cosine distance with total variation and small pixels, over codes, then features, by Adam.

    The result is the image of least loss over all stages. If the generator has as many classes as
    the client, the labels choose its class; otherwise the attack searches for a mixture of
    classes too. Generated images of another size are interpolated; for grey images the channels
    are averaged.

    Args:
        iterations: Iterations of each stage.
        lr: Learning rate of codes and features.
        tv: Weight of the total variation.
        norm: Weight of the mean squared pixel.
        stages: The number of stages: codes first, then the inputs of the following stages.
        radii: Bounds on the change of each later stage's features: in the L1 norm, as shares of
            the norm at the start. The last one holds for all further stages.
        pixels: Iterations of a last stage that searches for the pixels themselves, as IG does.
        pixels_lr: Learning rate of that stage.
        generator: File of the generator; None: the one shipped with Keyhole, for CIFAR-10.
    """

    iterations: Count = 250
    tv: Weight = 1e-4
    norm: Weight = 1e-6
    stages: Count = 4
    radii: Annotated[tuple[Positive, ...], Field(min_length=1)] = (0.1, 0.2, 0.3)
    pixels: Annotated[int, Field(ge=0)] = 0
    pixels_lr: Positive = 0.02
    generator: str | None = None

    name: ClassVar[str] = "gifd"
    summary: ClassVar[str] = "matches gradients within a generator's images, stage by stage"
    paper: ClassVar[str] = "Fang et al. 2023 (GIFD)"
    needs: ClassVar[str] = "a generator of images like the client's (one for CIFAR-10 is shipped)"
    uses: ClassVar[frozenset[Capability]] = frozenset(
        {Capability.IMAGE_CHANGE, Capability.NOISE, Capability.VALUES}
    )
    published: ClassVar[dict[str, Any]] = {"iterations": 1000}

    def incompatibilities(self, observation: Observation) -> list[str]:
        reasons = super().incompatibilities(observation)
        try:
            generated = load_generator(self.path).shape
        except KeyholeError as error:
            return [*reasons, str(error)]
        channels = observation.knowledge.shape[0]
        if channels not in (1, generated[0]):
            reasons.append(
                f"its generator makes images of {generated[0]} channels, but the client's have "
                f"{channels}: pass another generator as generator='PATH'"
            )
        return reasons

    def generates(self, shape: tuple[int, ...]) -> bool:
        """Whether the generator makes images of exactly this shape.

        Args:
            shape: ``(C, H, W)``.
        """
        return load_generator(self.path).shape == tuple(shape)

    @property
    def path(self) -> Path | None:
        """The generator's file; None: the shipped one."""
        return None if self.generator is None else Path(self.generator)

    def build_parts(self, problem: MatchingProblem) -> MatchingParts:
        """The parts of the first stage; later stages differ in the images unknown."""
        generator = load_generator(self.path).to(problem.like)
        classes_match = generator.classes == problem.knowledge.classes
        return MatchingParts(
            objective=Cosine(),
            images=StageFeatures(generator, 0, measure_scales(generator), classes_match),
            optimiser=Adam(lr=self.lr),
            schedule=CosineDecay(warm_up=WARM_UP),
            priors=(TotalVariation(self.tv), Magnitude(self.norm)),
        )

    def _build_stages(self, first: MatchingParts) -> list[MatchingParts]:
        """The parts of each stage, given those of the first."""
        features, stages = first.images, [first]
        assert isinstance(features, StageFeatures)
        for number in range(min(self.stages, len(features.generator.stage_shapes)) - 1):
            features = features.next_stage(self.radii[min(number, len(self.radii) - 1)])
            stages.append(replace(first, images=features))
        if self.pixels:
            refine = Adam(lr=self.pixels_lr, signed=(Pixels.name,))
            stages.append(replace(first, images=Pixels(), optimiser=refine))
        return stages

    def stream(
        self, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        if not observations:
            return
        group = VictimGroup(self, observations)
        stage_parts = self._build_stages(group.parts)
        lengths = [
            self.pixels if isinstance(parts.images, Pixels) else self.iterations
            for parts in stage_parts
        ]
        shared = SharedCheckpointer(checkpointer, lengths)
        stages: list[SearchStage] = []
        with use_precision(self.precision):
            for number, parts in enumerate(stage_parts):
                previous = stages[-1] if stages else None
                stage = SearchStage(group, parts, lengths[number], previous)
                stage.run(shared.stage(number))
                stages.append(stage)
            reconstructions = [
                merge_stages([stage.reconstruct(number) for stage in stages])
                for number in range(len(observations))
            ]
        yield from reconstructions
