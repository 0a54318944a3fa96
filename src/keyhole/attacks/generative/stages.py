"""Several runs of the engine one after another, each from where the one before it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.generative.feature_domain import CENTRE, Features
from keyhole.attacks.matching.engine import START
from keyhole.attacks.matching.job import Job
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.runner import under
from keyhole.attacks.matching.unknowns import Picture
from keyhole.attacks.workbench import Saved, Workbench


class Stage:
    """One run of the engine; its victims start at the images that the stage before found best."""

    def __init__(self, job: Job, recipe: Recipe, iterations: int, before: Stage | None) -> None:
        self.job = job.with_recipe(recipe)
        self.recipe, self.iterations, self.before = recipe, iterations, before

    def run(self, bench: Workbench) -> None:
        self.done = self.job.runner(self.iterations, bench, self.given)
        self.done.run()

    def given(self, victims: Sequence[int]) -> State:
        """What is known of some victims, and where the stage before left them."""
        known = self.job.given(victims)
        if self.before is None:
            return known
        picture = self.recipe.picture
        left = self.before.left(victims, picture)
        if isinstance(picture, Features):
            known[CENTRE] = picture.split(left[picture.name])[0].contiguous()
        return known | {START + name: value for name, value in left.items()}

    def left(self, victims: Sequence[int], picture: Picture) -> State:
        """This stage's best images as the ``picture`` of the next, and its other unknowns."""
        outcomes = [self.done.outcomes[victim].best for victim in victims]
        best = {name: torch.stack([o[name] for o in outcomes]) for name in outcomes[0]}
        own = self.recipe.picture
        assert isinstance(own, Features)
        value = best.pop(own.name)
        on = isinstance(picture, Features)
        return {
            **best,
            picture.name: own.advanced(value) if on else own.render(value, self.job.problem),
        }

    def reconstruction(self, number: int) -> Reconstruction:
        return self.job.reconstruction(number, self.done)


def joined(found: Sequence[Reconstruction]) -> Reconstruction:
    """The best stage's images, by loss, with the way through all stages."""
    facts = [stage.diagnostics for stage in found]
    best = min(range(len(found)), key=lambda k: (facts[k]["failed"], facts[k]["loss"]))
    before = [int(sum(f["iterations"] for f in facts[:k])) for k in range(len(found))]
    stages = list(zip(before, found, strict=True))
    images = found[best].images
    return replace(
        found[best],
        images=None if images is None else images.cpu(),
        loss_curve=tuple((start + i, loss) for start, f in stages for i, loss in f.loss_curve),
        frames=tuple(
            (start + i, image) for start, f in stages for i, image in f.frames if i or not start
        ),
        diagnostics={
            **facts[best],
            "iterations": sum(f["iterations"] for f in facts),
            "stage": float(best),
        },
    )


@dataclass
class Drawer:
    """One workbench for several runs: what each saved, side by side."""

    bench: Workbench
    lengths: Sequence[int]
    saved: dict[int, Saved] = field(default_factory=dict)

    def __post_init__(self) -> None:
        found = self.bench.load()
        if found is not None:
            tensors, facts = found
            for key, own in facts["stages"].items():
                self.saved[int(key)] = under(f"{key}/", tensors), own

    def of(self, number: int) -> StageBench:
        return StageBench(self, number, self.bench.victims_at_once, self.bench.deadline)

    def keep(self) -> None:
        tensors = {f"{k}/{n}": t for k, (own, _) in self.saved.items() for n, t in own.items()}
        self.bench.save(tensors, {"stages": {k: own for k, (_, own) in self.saved.items()}})


@dataclass
class StageBench:
    """The place of one run on the common workbench."""

    drawer: Drawer
    number: int
    victims_at_once: int | None
    deadline: float | None = None

    def load(self) -> Saved | None:
        return self.drawer.saved.get(self.number)

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.drawer.saved[self.number] = (dict(tensors), dict(facts))
        self.drawer.keep()

    def due(self) -> bool:
        return self.drawer.bench.due()

    def watch(self, done: int, total: int, text: str) -> None:
        lengths = self.drawer.lengths
        where = f"stage {self.number + 1} of {len(lengths)}: {text}"
        self.drawer.bench.watch(sum(lengths[: self.number]) + done, sum(lengths), where)
