"""One call of a matching attack: which victim is whose, and what each is told."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.closed_form import LabelInference
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.execution import Matcher, choose
from keyhole.attacks.matching.match import Targets
from keyhole.attacks.matching.optimisers import State
from keyhole.attacks.matching.problem import Problem, label_orders
from keyhole.attacks.matching.read_off import read
from keyhole.attacks.matching.recipe import Recipe
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.state import Outcome
from keyhole.attacks.workbench import Workbench
from keyhole.models.anatomy import without_part
from keyhole.seeds import generator
from keyhole.threat import Observation

if TYPE_CHECKING:
    from keyhole.attacks.matching.attack import Matching

GivenOf = Callable[[Sequence[int]], State]
"""What is given of some victims, ``[N, ...]``."""
CONVINCING = 0.01
"""The relative distance of gradients at which an attacker is half convinced."""


class Job:
    """One call of an attack.

    Victims of the engine are trials: ``victim = observation * trials + trial``.
    """

    def __init__(
        self, attack: Matching, problem: Problem, observations: Sequence[Observation]
    ) -> None:
        self.attack, self.problem, self.observations = attack, problem, observations
        self.recipe = attack.whole_recipe(problem)
        self.notes: list[str] = []
        self.found_out: dict[int, dict[str, Tensor]] = {}

    def with_recipe(self, recipe: Recipe) -> Job:
        """The same by another recipe; what was found out beforehand is shared."""
        other = copy.copy(self)
        other.recipe = recipe
        return other

    def runner(self, iterations: int, bench: Workbench, given: GivenOf) -> Runner:
        """What takes all victims to their end, each told what ``given`` says of it."""
        return Runner(
            engine=Engine(self.recipe, self.problem, iterations),
            matcher_of=self.matcher,
            given_of=given,
            draw_of=self.draw,
            victims=len(self.observations) * self.attack.trials,
            bench=bench,
            notes=self.notes,
        )

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
