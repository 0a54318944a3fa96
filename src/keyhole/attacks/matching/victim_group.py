"""The victims of one call of a matching attack, and what the attacker knows about each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from keyhole.attacks.base import Reconstruction
from keyhole.attacks.checkpointer import Checkpointer
from keyhole.attacks.matching.engine import Engine
from keyhole.attacks.matching.gradients.choice import choose_matcher
from keyhole.attacks.matching.gradients.match import Targets
from keyhole.attacks.matching.gradients.matchers import Matcher
from keyhole.attacks.matching.gradients.rounds import RoundsMatcher
from keyhole.attacks.matching.parts.matching_parts import MatchingParts
from keyhole.attacks.matching.problem import MatchingProblem, enumerate_label_orders
from keyhole.attacks.matching.readable_masks import read_masks
from keyhole.attacks.matching.runner import Runner
from keyhole.attacks.matching.state import Outcome, State
from keyhole.attacks.matching.victim_statistics import all_make_sense, stack_uploaded
from keyhole.models.anatomy import unused_parameters
from keyhole.seeds import generator
from keyhole.threat import Observation

if TYPE_CHECKING:
    from keyhole.attacks.matching.attack import Matching

GetKnownValues = Callable[[Sequence[int]], State]
"""Returns what is known about some victims, ``[N, ...]``."""
HALF_CONFIDENCE_LOSS = 0.01
"""The loss at which the attacker's confidence is one half."""


class VictimGroup:
    """All victims of one call of an attack; at least one, and all of the same model.

    A victim is one trial on one observation: ``victim = observation * trials + trial``.
    """

    def __init__(self, attack: Matching, observations: Sequence[Observation]) -> None:
        self.attack = attack
        self.observations = [attack.prepare(each) for each in observations]
        self.problem = attack.build_problem(self.observations[0])
        self.notes: list[str] = []
        if not all_make_sense(self.observations, self.problem):
            self.problem = replace(self.problem, norms=())
        if self.problem.norms and attack.batch_statistics != "ignored":
            count = len(self.problem.norms)
            self.notes.append(f"the batch statistics of {count} layers were read from buffers")
        self.parts = attack.build_all_parts(self.problem)
        self.rounds = self._choose_rounds()
        if self.rounds:
            listed = ", ".join(str(number) for number in self.rounds)
            self.notes.append(f"matched together with what came back in earlier rounds: {listed}")
        self._extra_inputs: dict[int, dict[str, Tensor]] = {}

    def _choose_rounds(self) -> list[int]:
        """The earlier rounds that the server saw of every victim, if they can be matched as well.

        Masks and orders of images differ from round to round, so that nothing may depend on them.
        """
        fixed = not self.problem.sites and not self.problem.label_orders_matter
        if not self.attack.combines_rounds or not fixed:
            return []
        numbers = [{seen.number for seen in each.rounds} for each in self.observations]
        return sorted(set.intersection(*numbers))

    def with_parts(self, parts: MatchingParts) -> VictimGroup:
        """The same victims attacked with other parts; extra inputs and notes are shared."""
        other = copy.copy(self)
        other.parts = parts
        return other

    def make_runner(
        self, iterations: int, checkpointer: Checkpointer, known_values: GetKnownValues
    ) -> Runner:
        """A runner for all victims."""
        return Runner(
            engine=Engine(self.parts, self.problem, iterations),
            make_matcher=self.make_matcher,
            known_values=known_values,
            make_generator=self.make_generator,
            victims=len(self.observations) * self.attack.trials,
            checkpointer=checkpointer,
            compilation=self.attack.compiled,
            notes=self.notes,
        )

    def observation(self, victim: int) -> Observation:
        """What the server observed of a victim."""
        return self.observations[victim // self.attack.trials]

    def target_gradient(self, observation: Observation) -> dict[str, Tensor]:
        """The target gradient of the model's parameters, without buffers that the update holds."""
        unused = unused_parameters(self.problem.model, self.problem.knowledge.shape)
        names = {name for name, _ in self.problem.model.named_parameters()} - unused
        target = self.attack.target_gradient(observation)
        misleading = self.attack.misleading_values(observation)
        names -= {name for name, mask in misleading.items() if bool(mask.all())}
        return {name: tensor for name, tensor in target.items() if name in names}

    def make_generator(self, victim: int, attempt: int) -> torch.Generator:
        """A generator that depends only on the client, the trial and the attempt."""
        trial = victim % self.attack.trials
        client = self.observation(victim).client
        return generator(self.attack.seed, "attack", client, trial, attempt)

    def make_matcher(self, victims: Sequence[int]) -> Matcher:
        """The matcher of some victims, by the backend that the attack asks for."""
        seen = [self.observation(victim) for victim in victims]
        last = self.match_observations(seen, self.problem)
        adapted = self.attack.adapt_matcher(last, seen)
        if not self.rounds:
            return adapted
        others = []
        for number in self.rounds:
            before = [each.in_round(number) for each in seen]
            problem = MatchingProblem.from_observation(before[0])
            if not all_make_sense(before, problem):
                problem = replace(problem, norms=())
            others.append(self.match_observations(before, problem))
        return RoundsMatcher(adapted, others)

    def match_observations(
        self, observations: Sequence[Observation], problem: MatchingProblem
    ) -> Matcher:
        """The matcher of what was observed of some victims in one round."""
        targets = Targets.stack(
            [self.target_gradient(each) for each in observations],
            problem.like,
            unit=self.parts.objective.scale_free,
            gradient_weights=[self.attack.gradient_weights(each) for each in observations],
            intervals=[self.attack.target_intervals(each) for each in observations],
        )
        matcher, notes = choose_matcher(
            problem,
            targets,
            known=stack_uploaded(observations, problem, self.attack.batch_statistics),
            backend=self.attack.backend,
            statistics=self.parts.needs_statistics,
            needs_full_gradients=self.parts.needs_full_gradients,
            bfloat16=self.attack.precision == "bf16",
        )
        self.notes += [note for note in notes if note not in self.notes]
        return matcher

    def known_values(self, victims: Sequence[int]) -> State:
        """What is known about some victims, ``[N, ...]``."""
        like = self.problem.like
        extra = [self.extra_inputs(victim) for victim in victims]
        known: State = {n: torch.stack([e[n] for e in extra]).to(like) for n in extra[0]}
        if self.attack.labels != "sought":
            labels = torch.stack([self.labels(victim) for victim in victims])
            known["labels"] = torch.eye(self.problem.outputs)[labels].to(like)
        if self.problem.sites and self.attack.masks == "given":
            masks = [concatenate_masks(self.observation(victim)) for victim in victims]
            known["masks"] = torch.stack(masks).to(like)
        if self.problem.sites and self.attack.masks == "read":
            gradients = [self.target_gradient(self.observation(v)) for v in victims]
            known["masks"] = torch.stack([read_masks(self.problem, g) for g in gradients])
        return known

    def extra_inputs(self, victim: int) -> dict[str, Tensor]:
        """The attack's extra inputs of a victim, computed once for all its trials."""
        number = victim // self.attack.trials
        if number not in self._extra_inputs:
            self._extra_inputs[number] = self.attack.extra_inputs(self.observation(victim))
        return self._extra_inputs[number]

    def labels(self, victim: int) -> Tensor:
        """The labels that are given or inferred; each trial assumes them in another order."""
        known = self.attack.read_labels(self.observation(victim))
        if self.problem.label_orders_matter and self.attack.trials > 1:
            orders = enumerate_label_orders(known.tolist(), self.problem.local_batch)
            known = torch.tensor(orders[victim % self.attack.trials % len(orders)])
        return known.cpu()

    def reconstructed_labels(self, victim: int, outcome: Outcome) -> Tensor | None:
        """The labels that were searched for or inferred; None if they were given."""
        if self.parts.labels is not None:
            return outcome.best[self.parts.labels.name].argmax(-1)
        return None if self.attack.labels == "given" else self.labels(victim)

    def reconstructed_masks(self, victim: int, outcome: Outcome) -> tuple[Tensor, ...] | None:
        """The masks at the least loss, including those read from the update."""
        if self.parts.masks is None:
            return None
        masks = outcome.best[self.parts.masks.name]
        known = self.known_values([victim]).get("masks")
        if known is not None:
            known = known[0].to(masks)
            masks = torch.where(known < 0, masks, known)
        return self.parts.masks.render(masks)

    def reconstruct(self, number: int, runner: Runner) -> Reconstruction:
        """The reconstruction of one observation: that of its best trial."""
        trials = range(number * self.attack.trials, (number + 1) * self.attack.trials)
        best = min(trials, key=lambda v: (runner.history[v].failed, runner.outcomes[v].loss))
        outcome, history = runner.outcomes[best], runner.history[best]
        diagnostics = {
            "loss": outcome.loss,
            "iterations": float(outcome.iterations),
            "restarts": float(history.restarts),
            "failed": float(history.failed),
        }
        if history.failed:
            return Reconstruction(diagnostics={**diagnostics, "images": 0.0, "loss": -1.0})
        unknown = self.parts.images
        images = unknown.render(outcome.best[unknown.name][None], self.problem)[0]
        if self.parts.batch is not None:
            images = self.parts.batch.restore(images, outcome.best, self.problem)
        images = self.attack.postprocess(images, self.observation(best))
        confidence = 1 / (1 + max(outcome.loss, 0.0) / HALF_CONFIDENCE_LOSS)
        frames = [(iteration, image.float()) for iteration, image in history.frames]
        return Reconstruction(
            images=images,
            labels=self.reconstructed_labels(best, outcome),
            confidence=torch.full((len(images),), confidence),
            loss_curve=tuple(history.losses),
            frames=tuple(frames),
            masks=self.reconstructed_masks(best, outcome),
            diagnostics=diagnostics,
            notes=tuple(runner.notes),
        )


def concatenate_masks(observation: Observation) -> Tensor:
    """The client's own masks, all sites concatenated: ``[samples, elements]``."""
    assert observation.knowledge.masks is not None
    return torch.cat([mask.flatten(1) for mask in observation.knowledge.masks], dim=1)
