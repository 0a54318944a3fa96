"""Attacks tried on one gradient, in the client mode that fits, and the best of what they find."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from keyhole.attacks import Attack, DiaRead, Matching, Reconstruction
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.auditing.attack_choice import can_infer_labels, choose_closed_forms, choose_iterative
from keyhole.auditing.client_mode import (
    choose_mode,
    detect_batch_statistics,
    has_running_statistics,
)
from keyhole.auditing.client_normalisation import attack_by_best_fit
from keyhole.auditing.time_budget import limit_iterations
from keyhole.data import Normalisation
from keyhole.errors import KeyholeError
from keyhole.settings import ClientMode
from keyhole.threat import Observation

SURE = 0.9
"""Mean confidence from which no further attack is tried."""
PROBE = 50
"""Iterations after which the losses of two modes are compared."""


@dataclass(frozen=True)
class TriedAttack:
    """An attack that ``auto`` has tried, or the reason why it could not.

    Args:
        attack: The attack, with those of its parameters that are not the defaults.
        client_mode: The mode that it assumed.
        confidence: The attack's own confidence, 0 to 1, averaged over the client's images; None if
            it could not be tried.
        why_not: Why it could not be tried; empty if it was.
    """

    attack: str
    client_mode: ClientMode
    confidence: float | None = None
    why_not: str = ""


@dataclass(frozen=True)
class GradientAttackResult(Reconstruction):
    """What an attack saw of the images behind a gradient.

    Args:
        pixels: The images ``[n, C, H, W]`` in [0, 1]; None if nothing was seen. ``images`` holds
            the same as model inputs.
        attack: The attack that saw them; empty if none saw anything.
        client_mode: The mode that the client is taken to have been in.
        tried: The attacks that were tried, in order.
    """

    pixels: Tensor | None = None
    attack: str = ""
    client_mode: ClientMode = "train"
    tried: tuple[TriedAttack, ...] = ()


@dataclass
class GradientSearch:
    """The attacks tried on one observation, and the best of what they found."""

    observation: Observation
    given_mode: ClientMode | None
    assumed: Normalisation | None
    """The normalisation that is assumed if the user gave none."""
    notes: list[str] = field(default_factory=list)
    tried: list[TriedAttack] = field(default_factory=list)
    best: GradientAttackResult | None = None
    score: float = -1.0
    batch_statistics: bool | None = None
    """Whether batch norms are taken to use the batch's statistics; None: not yet known."""

    def __post_init__(self) -> None:
        model = self.observation.model
        self.norms = has_running_statistics(model)
        self.drops = bool(MatchingProblem.from_observation(self.observation).sites)
        if self.given_mode is None and self.norms and self.observation.knowledge.defense is None:
            self.batch_statistics = detect_batch_statistics(model, self.observation.update)
            if self.batch_statistics is not None:
                self.notes.append(
                    "client_mode was not given: the gradient shows that batch norms used "
                    f"{name_statistics(self.batch_statistics)} statistics"
                )

    def try_all(self, iterations: int | None, seed: int) -> None:
        """Tries closed forms, then iterative attacks, until one is sure of what it sees."""
        closed = [a for a in choose_closed_forms() if a.reads_images and a.reads_update]
        knowledge = self.observation.knowledge
        iterative: list[Attack] = [*choose_iterative(knowledge.defense, knowledge.shape)]
        if self.drops and self.given_mode != "eval":
            iterative.append(DiaRead())
        tuned = (tune_attack(a, self.observation, iterations, seed) for a in iterative)
        for attack in (*closed, *tuned):
            if self.score >= SURE:
                return
            try:
                self.run(attack)
            except KeyholeError as error:
                mode = self.given_mode or "train"
                self.tried.append(TriedAttack(attack.label, mode, why_not=str(error)))

    def run(self, attack: Attack) -> None:
        """Runs one attack in the mode that fits; raises if the attack does not apply."""
        mode = self.choose_mode(attack)
        found, normalisation = self.reconstruct(attack, self.observe_in(mode))
        confidence = 0.0 if found.confidence is None else float(found.confidence.double().sum())
        score = confidence / self.observation.knowledge.batch_size
        self.tried.append(TriedAttack(attack.label, mode, round(score, 4)))
        if found.images is not None and len(found.images) and score > self.score:
            pixels = normalisation.pixels(found.images.double()).clamp(0, 1).to(found.images)
            facts = {name: getattr(found, name) for name in Reconstruction.__dataclass_fields__}
            self.best = GradientAttackResult(
                **facts, pixels=pixels, attack=attack.label, client_mode=mode
            )
            self.score = score

    def reconstruct(
        self, attack: Attack, observation: Observation
    ) -> tuple[Reconstruction, Normalisation]:
        """What an attack finds, and the normalisation that turns it into pixels."""
        knowledge = observation.knowledge
        if self.assumed is None or not attack.recovers_inputs:
            return attack(observation), Normalisation(knowledge.mean, knowledge.std)
        exact = knowledge.defense is None
        return next(
            attack_by_best_fit(attack, [observation], NullCheckpointer(), self.assumed, exact=exact)
        )

    def observe_in(self, mode: ClientMode) -> Observation:
        """The observation of an attacker who assumes this mode."""
        knowledge = replace(self.observation.knowledge, client_mode=mode)
        return replace(self.observation, knowledge=knowledge)

    def choose_mode(self, attack: Attack) -> ClientMode:
        """The mode that the user gave, that the gradient shows, or that has the smaller loss."""
        if self.given_mode is not None:
            return self.given_mode
        if not (self.norms or self.drops):
            return "train"
        drops = isinstance(attack, Matching) and attack.masks != "ignored"
        if self.norms and self.batch_statistics is None and isinstance(attack, Matching):
            self.batch_statistics = self.compare_modes(attack, drops=drops)
        used = self.batch_statistics is True
        return choose_mode(batch_statistics=used, norms=self.norms, drops=drops)

    def compare_modes(self, attack: Matching, *, drops: bool) -> bool:
        """Whether the attack's loss after a few iterations is smaller with batch statistics."""
        probe = limit_iterations(replace(attack, iterations=max(PROBE, attack.iterations)), PROBE)
        losses = {}
        for used in (False, True):
            mode = choose_mode(batch_statistics=used, norms=True, drops=drops)
            found = probe(self.observe_in(mode))
            losses[used] = found.diagnostics["loss"] if found.images is not None else torch.inf
        better = losses[True] < losses[False]
        self.notes.append(
            f"client_mode was not given: with batch norms that use {name_statistics(better)} "
            f"statistics the loss of {attack.name} is less ({min(losses.values()):.3g} against "
            f"{max(losses.values()):.3g} after {PROBE} iterations)"
        )
        return better

    def conclude(self) -> GradientAttackResult:
        """The best result, with all that was tried and assumed."""
        best = self.best or GradientAttackResult(client_mode=self.given_mode or "train")
        notes = [*self.notes, *best.notes]
        if self.given_mode is None and (self.norms or self.drops):
            matters = " and ".join(["batch norms"] * self.norms + ["dropout"] * self.drops)
            notes.append(
                f"client_mode was not given, and the model has {matters}: {best.client_mode} is "
                "assumed; if it was another, pass it, or attacks look weaker than they are"
            )
        if self.assumed is not None:
            notes.append(
                "mean and std were not given: pixels in [0, 1] are assumed to be fed as they are, "
                "unless a note says otherwise"
            )
        return replace(best, notes=tuple(notes), tried=tuple(self.tried))


def name_statistics(of_the_batch: bool) -> str:
    return "the batch's own" if of_the_batch else "their running"


def tune_attack(
    attack: Attack, observation: Observation, iterations: int | None, seed: int
) -> Attack:
    """The attack with these settings; it infers or searches for labels that are not known."""
    if not isinstance(attack, Matching):
        return attack
    attack = replace(attack, seed=seed, iterations=iterations or attack.iterations)
    if attack.labels != "given" or observation.knowledge.labels is not None:
        return attack
    return replace(attack, labels="inferred" if can_infer_labels(observation) else "sought")
