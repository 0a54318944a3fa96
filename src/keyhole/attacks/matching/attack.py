"""Gradient matching as an attack: observations in, reconstructions out."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.base import Attack, Reconstruction
from keyhole.attacks.closed_form import LabelInference
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.execution import Matcher, Way, choose
from keyhole.attacks.matching.lens import Lenses
from keyhole.attacks.matching.match import Targets
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.precision import Precision, computing_in
from keyhole.attacks.matching.problem import Problem, label_orders
from keyhole.attacks.matching.read_off import read
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.state import Outcome
from keyhole.attacks.matching.unknowns import SoftLabels
from keyhole.attacks.workbench import Bare, Workbench
from keyhole.models.anatomy import without_part
from keyhole.seeds import generator
from keyhole.threat import Observation

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Weight = Annotated[float, Field(ge=0)]

CONVINCING = 0.01
"""The relative distance of gradients at which an attacker is half convinced."""


@dataclass(frozen=True, kw_only=True)
class Matching(Attack):
    """Looks for images whose gradient is the one observed. Subclasses say by which recipe.

    ``labels``: ``given``, ``inferred`` from the last layer, or ``sought`` with the images.
    ``masks``: the clients' dropout is ``ignored``, its masks are ``given``, ``sought`` with the
    images, or ``read`` off the update where it shows them and sought elsewhere.
    ``trials`` first guesses are followed and the one of least loss is taken; where images differ in
    the local steps they were in, each guess believes another order of them. ``way`` and
    ``precision`` say how it is computed.
    """

    iterations: Count = 2000
    lr: Positive = 0.1
    labels: Literal["given", "inferred", "sought"] = "given"
    masks: Literal["ignored", "given", "sought", "read"] = "ignored"
    mask_weight: Weight = 1e-4
    trials: Count = 1
    way: Way = "auto"
    precision: Precision = "float32"
    seed: int = 0

    published: ClassVar[dict[str, Any]] = {}
    """The settings of the paper, where ours differ: ``--parity paper``."""
    exact: ClassVar[bool] = False
    needs: ClassVar[str] = "any differentiable model; minutes rather than seconds"

    @abstractmethod
    def recipe(self, problem: Problem) -> Recipe:
        """The parts, for one model; labels and masks are seen to by :meth:`whole_recipe`."""

    def whole_recipe(self, problem: Problem) -> Recipe:
        """The parts, with labels and masks among the unknowns where they are sought."""
        recipe = self.recipe(problem)
        if self.labels == "sought":
            recipe = replace(recipe, labels=SoftLabels())
        if self.masks in ("sought", "read"):
            recipe = recipe.seeking_masks(problem, self.mask_weight)
        return recipe

    @property
    def given(self) -> frozenset[str]:
        told = {"labels": self.labels, "masks": self.masks}
        return frozenset(name for name, how in told.items() if how == "given")

    def misfits(self, observation: Observation) -> list[str]:
        reasons = []
        if self.labels == "inferred":
            reasons += LabelInference().misfits(observation)
        if self.labels == "given" and observation.knowledge.labels is None:
            reasons.append("it must be given the labels, and was not")
        if self.masks == "given" and observation.knowledge.masks is None:
            reasons.append("it must be given the client's dropout masks, and was not")
        if self.masks == "given" and not Problem.of(observation).sites:
            reasons.append("the client drops nothing, so that there are no masks to be given")
        return reasons

    def reads(self, observation: Observation) -> set[str]:
        """Any parameter will do; of those there are, at least one must be reported."""
        names = [name for name, _ in observation.model.named_parameters()]
        reported = [name for name in names if name in observation.update.change]
        return set() if reported else set(names[:1])

    def observed(self, observation: Observation) -> dict[str, Tensor]:
        """The gradient that is to be matched."""
        return observation.update.gradient()

    def lenses(self, observation: Observation) -> Lenses:
        """Through what that gradient is seen, by an attacker who knows where noise is in it."""
        return {}

    def told(self, observation: Observation) -> dict[str, Tensor]:
        """What else the recipe's parts must know of one victim."""
        return {}

    def finished(self, images: Tensor, observation: Observation) -> Tensor:
        """What the attack makes of the images that match, ``[B, C, H, W]``."""
        return images

    def reconstruct(self, observation: Observation) -> Reconstruction:
        return next(self.stream([observation], Bare()))

    def stream(
        self, observations: Sequence[Observation], bench: Workbench
    ) -> Iterator[Reconstruction]:
        if not observations:
            return
        keep_memory()
        problem = Problem.of(observations[0])
        job = _Job(self, problem, observations)
        runner = Runner(
            engine=Engine(job.recipe, problem, self.iterations),
            matcher_of=job.matcher,
            given_of=job.given,
            draw_of=job.draw,
            victims=len(observations) * self.trials,
            bench=bench,
            notes=job.notes,
        )
        with computing_in(self.precision):
            runner.run()
        for number in range(len(observations)):
            yield job.reconstruction(number, runner)


class _Job:
    """One call of an attack: which victim is whose, and what each is told.

    Victims of the engine are trials: ``victim = observation * trials + trial``.
    """

    def __init__(
        self, attack: Matching, problem: Problem, observations: Sequence[Observation]
    ) -> None:
        self.attack, self.problem, self.observations = attack, problem, observations
        self.recipe = attack.whole_recipe(problem)
        self.notes: list[str] = []
        self.found_out: dict[int, dict[str, Tensor]] = {}

    def of(self, victim: int) -> Observation:
        return self.observations[victim // self.attack.trials]

    def gradient(self, victim: int) -> dict[str, Tensor]:
        """What was observed of the parameters; clients that share weights share buffers as well."""
        idle = without_part(self.problem.model, self.problem.knowledge.shape)
        names = {name for name, _ in self.problem.model.named_parameters()} - idle
        observed = self.attack.observed(self.of(victim))
        return {name: tensor for name, tensor in observed.items() if name in names}

    def draw(self, victim: int, attempt: int) -> torch.Generator:
        """The same draws for the same client, whoever is attacked beside it."""
        trial = victim % self.attack.trials
        return generator(self.attack.seed, "attack", self.of(victim).client, trial, attempt)

    def matcher(self, victims: Sequence[int]) -> Matcher:
        gradients = [self.gradient(victim) for victim in victims]
        targets = Targets.stack(
            gradients,
            self.problem.like,
            unit=self.recipe.objective.scale_free,
            lenses=[self.attack.lenses(self.of(victim)) for victim in victims],
        )
        matcher, notes = choose(
            self.problem,
            targets,
            way=self.attack.way,
            statistics=self.recipe.watches_statistics,
            whole=self.recipe.needs_whole,
            half=self.attack.precision == "bf16",
        )
        self.notes += [note for note in notes if note not in self.notes]
        return matcher

    def given(self, victims: Sequence[int]) -> State:
        """What is known of some victims, ``[N, ...]``."""
        like = self.problem.like
        told = [self.told(victim) for victim in victims]
        known: State = {n: torch.stack([t[n] for t in told]).to(like) for n in told[0]}
        if self.attack.labels != "sought":
            labels = torch.stack([self.labels(victim) for victim in victims])
            known["labels"] = torch.eye(self.problem.outputs)[labels].to(like)
        if self.problem.sites and self.attack.masks == "given":
            known["masks"] = torch.stack([self.masks(self.of(v)) for v in victims]).to(like)
        if self.problem.sites and self.attack.masks == "read":
            gradients = [self.gradient(victim) for victim in victims]
            known["masks"] = torch.stack([read(self.problem, g) for g in gradients])
        return known

    def told(self, victim: int) -> dict[str, Tensor]:
        """What the attack found out of a victim beforehand; once for all its trials."""
        number = victim // self.attack.trials
        if number not in self.found_out:
            self.found_out[number] = self.attack.told(self.of(victim))
        return self.found_out[number]

    def labels(self, victim: int) -> Tensor:
        """The labels that were given or inferred; each trial believes them in another order."""
        observation = self.of(victim)
        if self.attack.labels == "given":
            known = observation.knowledge.labels
        else:
            known = LabelInference().reconstruct(observation).labels
        assert known is not None
        if self.problem.label_orders_matter and self.attack.trials > 1:
            orders = label_orders(known.tolist(), self.problem.local_batch)
            known = torch.tensor(orders[victim % self.attack.trials % len(orders)])
        return known.cpu()

    def masks(self, observation: Observation) -> Tensor:
        """The client's own masks side by side, ``[samples, elements]``."""
        assert observation.knowledge.masks is not None
        return torch.cat([mask.flatten(1) for mask in observation.knowledge.masks], dim=1)

    def labels_found(self, victim: int, outcome: Outcome) -> Tensor | None:
        """The labels that were sought or inferred; None where they were given."""
        if self.recipe.labels is not None:
            return outcome.best[self.recipe.labels.name].argmax(-1)
        return None if self.attack.labels == "given" else self.labels(victim)

    def masks_found(self, victim: int, outcome: Outcome) -> tuple[Tensor, ...] | None:
        """The masks at the least loss: those sought, and among them those read off the update."""
        if self.recipe.masks is None:
            return None
        found = outcome.best[self.recipe.masks.name]
        known = self.given([victim]).get("masks")
        if known is not None:
            known = known[0].to(found)
            found = torch.where(known < 0, found, known)
        return self.recipe.masks.render(found)

    def reconstruction(self, number: int, runner: Runner) -> Reconstruction:
        """What became of one observation: its best trial."""
        trials = range(number * self.attack.trials, (number + 1) * self.attack.trials)
        best = min(trials, key=lambda v: (runner.history[v].failed, runner.outcomes[v].loss))
        outcome, history = runner.outcomes[best], runner.history[best]
        facts = {
            "loss": outcome.loss,
            "iterations": float(outcome.iterations),
            "restarts": float(history.restarts),
            "failed": float(history.failed),
        }
        if history.failed:
            return Reconstruction(diagnostics={**facts, "images": 0.0, "loss": -1.0})
        picture = self.recipe.picture
        images = picture.render(outcome.best[picture.name][None], self.problem)[0]
        images = self.attack.finished(images, self.of(best))
        believed = 1 / (1 + max(outcome.loss, 0.0) / CONVINCING)
        frames = [(when, image.float()) for when, image in history.frames]
        return Reconstruction(
            images=images,
            labels=self.labels_found(best, outcome),
            confidence=torch.full((len(images),), believed),
            loss_curve=tuple(history.losses),
            frames=tuple(frames),
            masks=self.masks_found(best, outcome),
            diagnostics=facts,
            notes=tuple(runner.notes),
        )
