"""Gradient inversion over feature domains (Fang et al. 2023, GIFD).

First the codes of images whose gradient is the one observed are sought, then the features that
enter the generator's next stage, from those of the best code on, and so forth: each stage can draw
more than the one before it, and starts where that one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from keyhole.attacks import noise
from keyhole.attacks.base import Reconstruction
from keyhole.attacks.generative.feature_domain import Features, usual_sizes
from keyhole.attacks.generative.prior import load_generator
from keyhole.attacks.generative.stages import Drawer, Stage, joined
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.attacks.matching.attack import Count, Matching, Positive, Weight
from keyhole.attacks.matching.job import Job
from keyhole.attacks.matching.objectives import Cosine
from keyhole.attacks.matching.optimisers import Adam, CosineDecay
from keyhole.attacks.matching.precision import computing_in
from keyhole.attacks.matching.priors import Magnitude, TotalVariation
from keyhole.attacks.matching.problem import Problem
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.unknowns import Pixels
from keyhole.attacks.workbench import Workbench
from keyhole.errors import KeyholeError
from keyhole.threat import Observation

WARM_UP = 0.05
"""The share of each stage in which the rate rises."""


@dataclass(frozen=True, kw_only=True)
class Gifd(Matching):
    """Cosine distance with total variation and small pixels, over codes, then features, by Adam.

    ``iterations`` are spent on each of ``stages``: the generator's codes, then what enters its
    stages one by one. ``radii`` bound how far the features of each of those may move, in the L1
    norm, as a share of the norm they start with (the last holds for all that follow). ``pixels``
    iterations at rate ``pixels_lr`` end it, in which the image itself is sought from there on, as
    IG does. The image of least loss, whatever the stage, is the attack's.

    The generator draws the class that the label says, where it has as many classes as the client;
    otherwise a mixture of classes is sought too. ``generator`` is a file; None: the one that comes
    with Keyhole, for CIFAR-10. Other sizes are drawn by interpolation, grey images as means.
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
    summary: ClassVar[str] = "matches gradients by what a generator can draw, stage by stage"
    paper: ClassVar[str] = "Fang et al. 2023 (GIFD)"
    needs: ClassVar[str] = "a generator of images like the client's (CIFAR-10's comes along)"
    adapts_to: ClassVar[frozenset[str]] = noise.KNOWN
    published: ClassVar[dict[str, Any]] = {"iterations": 1000}

    def misfits(self, observation: Observation) -> list[str]:
        reasons = super().misfits(observation)
        try:
            drawn = load_generator(self.path).shape
        except KeyholeError as error:
            return [*reasons, str(error)]
        channels = observation.knowledge.shape[0]
        if channels not in (1, drawn[0]):
            reasons.append(
                f"its generator draws images of {drawn[0]} channels, the client's have {channels}: "
                "give it another by generator='PATH'"
            )
        return reasons

    def draws(self, shape: tuple[int, ...]) -> bool:
        """Whether its generator draws images of this very shape, so that its prior fits them."""
        return load_generator(self.path).shape == tuple(shape)

    @property
    def path(self) -> Path | None:
        return None if self.generator is None else Path(self.generator)

    def recipe(self, problem: Problem) -> Recipe:
        """The first stage's; the others differ in what is sought."""
        generator = load_generator(self.path).to(problem.like)
        told = generator.classes == problem.knowledge.classes
        return Recipe(
            objective=Cosine(),
            picture=Features(generator, 0, usual_sizes(generator), told),
            optimiser=Adam(lr=self.lr),
            schedule=CosineDecay(warm_up=WARM_UP),
            priors=(TotalVariation(self.tv), Magnitude(self.norm)),
        )

    def recipes(self, first: Recipe) -> list[Recipe]:
        """One for each stage, from the codes' on."""
        domain, found = first.picture, [first]
        assert isinstance(domain, Features)
        for number in range(min(self.stages, len(domain.generator.entries)) - 1):
            domain = domain.next(self.radii[min(number, len(self.radii) - 1)])
            found.append(replace(first, picture=domain))
        if self.pixels:
            refine = Adam(lr=self.pixels_lr, signed=(Pixels.name,))
            found.append(replace(first, picture=Pixels(), optimiser=refine))
        return found

    def stream(
        self, observations: Sequence[Observation], bench: Workbench
    ) -> Iterator[Reconstruction]:
        if not observations:
            return
        keep_memory()
        problem = Problem.of(observations[0])
        job = Job(self, problem, observations)
        recipes = self.recipes(job.recipe)
        lengths = [
            self.pixels if isinstance(each.picture, Pixels) else self.iterations for each in recipes
        ]
        drawer = Drawer(bench, lengths)
        stages: list[Stage] = []
        with computing_in(self.precision):
            for number, recipe in enumerate(recipes):
                stage = Stage(job, recipe, lengths[number], stages[-1] if stages else None)
                stage.run(drawer.of(number))
                stages.append(stage)
            found = [
                joined([s.reconstruction(v) for s in stages]) for v in range(len(observations))
            ]
        yield from found
