"""A client checks its own update before it leaves: would attacks read it in half a minute?

The client knows its images, so it can score what the server could see::

    guard = Guard(model=model, data=images, threshold=0.5, seconds=30)
    if guard(update, images, labels).leaks is not False: ...  # None: nothing could be tried
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from keyhole.attacks import Attack, LabelInference, Matching
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.auditing.attack_choice import (
    MAX_IMAGES_ITERATIVE,
    choose_closed_forms,
    choose_iterative,
    describe_missing,
    describe_obstacle,
)
from keyhole.auditing.best_reading import BestReading
from keyhole.auditing.client_normalisation import attack_by_best_fit, note_captured_assumption
from keyhole.auditing.own_images import compare_losses, infer_labels
from keyhole.auditing.resolve import describe_batch_norms
from keyhole.auditing.scoring import READ_SSIM
from keyhole.auditing.self_check import NotTried, SelfCheck, check_seconds, check_threshold
from keyhole.auditing.stage_attacks import choose_attackers
from keyhole.auditing.time_budget import attempt
from keyhole.data import ImageSet, Normalisation
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import BadUpdate, BadValue, KeyholeError
from keyhole.models.weights import load_tensors
from keyhole.settings import ClientMode, parse_mode
from keyhole.threat import Attacker, Knowledge, Observation, Server
from keyhole.update import Update

SECONDS = 30.0
"""The default time for iterative attacks."""

Observe = Callable[[Attack, Attacker], Observation]
"""What an attacker sees of the client's update."""

log = logging.getLogger("keyhole")


class Guard:
    """Attacks a client's own update and scores what the attacks see.

    An update leaks if an image is seen with an SSIM of ``threshold`` or more, and better than a
    plain grey picture would show it. Closed forms come first; iterative attacks follow if the
    closed forms read nothing.

    Args:
        model: The model as the server sent it.
        data: The image set of the client's images: their shape, classes, mean and std.
        threshold: The SSIM, 0 to 1, from which an image counts as read.
        defense: The defense that the update went through; the guard's attackers know it.
        mode: The mode in which the client trained.
        seconds: Time for iterative attacks; 0 tries none of them.
        assumed_normalisation: Whether ``data``'s mean and std are only assumed; then closed forms
            may find that others fit better.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        data: ImageSet,
        threshold: float = READ_SSIM,
        defense: Defense | None = None,
        mode: ClientMode = "train",
        seconds: float = SECONDS,
        assumed_normalisation: bool = False,
    ) -> None:
        self.assumed_normalisation = assumed_normalisation
        self.threshold, self.seconds = check_threshold(threshold), check_seconds(seconds)
        self.data, self.mode = data, parse_mode(mode)
        self.defense = defense or NoDefense()
        self.model = self.defense.prepare_model(model)

    @torch.no_grad()
    def __call__(
        self,
        update: Update,
        images: Tensor,
        labels: Tensor,
        others: tuple[Tensor, Tensor] | None = None,
    ) -> SelfCheck:
        """Checks an update.

        Args:
            update: The update as it would leave the client.
            images: The images that it was computed from, ``[n, C, H, W]`` in [0, 1].
            labels: Their classes ``[n]``.
            others: Images and labels that the client did not train on, if it has any; they show how
                well the client's own images can be told from them.
        """
        server = Server(self.model)

        def observe(attack: Attack, attacker: Attacker) -> Observation:
            return server.receive(update, self._build_knowledge(attack, attacker, labels))

        best = BestReading(images, self.data, self.threshold)
        self._try_closed_forms(observe, best)
        if not best.leaks:
            self._try_iterative(observe, best)
        observation = observe(LabelInference(), Attacker.NAIVE)
        return replace(
            best.to_self_check(),
            labels=infer_labels(observation, labels),
            membership=compare_losses(observation, self.data, (images, labels), others),
            notes=() if best.leaks else self._list_doubts(),
        )

    def _try_closed_forms(self, observe: Observe, best: BestReading) -> None:
        for attack in (a for a in choose_closed_forms() if a.reads_images):
            for attacker in choose_attackers(attack, self.defense):
                observation = observe(attack, attacker)
                name = f"{attack.name} ({attacker})"
                if (missing := describe_missing(attack, observation)) is not None:
                    best.not_tried.append(NotTried(name, missing))
                elif not attack.incompatibilities(observation):
                    best.add(name, *self._reconstruct(attack, observation))

    def _reconstruct(
        self, attack: Attack, observation: Observation
    ) -> tuple[Tensor | None, Normalisation]:
        """What a closed form finds, and the normalisation that turns it into pixels."""
        own = Normalisation.of(self.data)
        if not (self.assumed_normalisation and attack.recovers_inputs):
            return attack(observation).images, own
        found, fit = next(attack_by_best_fit(attack, [observation], NullCheckpointer(), own))
        return found.images, fit

    def _try_iterative(self, observe: Observe, best: BestReading) -> None:
        """Runs iterative attacks until one reads an image or the time is up."""
        waiting = [
            (attack, attacker)
            for attack in choose_iterative(self.defense, self.data.shape)
            for attacker in reversed(choose_attackers(attack, self.defense))
        ]
        began = time.monotonic()
        while waiting and not best.leaks:
            attack, attacker = waiting.pop(0)
            observation = observe(attack, attacker)
            left = self.seconds - (time.monotonic() - began)
            why_not = self._find_obstacle(attack, observation) or self._try_within(
                left / (1 + len(waiting)), attack, observation, attacker, best
            )
            if why_not is not None:
                best.not_tried.append(NotTried(f"{attack.name} ({attacker})", why_not))

    def _find_obstacle(self, attack: Matching, observation: Observation) -> str | None:
        """Why an iterative attack is not tried; None if it is."""
        if not self.seconds:
            return "it takes time, and 0 seconds were given"
        count = observation.knowledge.batch_size
        if count > MAX_IMAGES_ITERATIVE:
            most = MAX_IMAGES_ITERATIVE
            return f"it cannot take {count} images in so short a time, {most} at most"
        return describe_obstacle(attack, observation)

    def _try_within(
        self,
        seconds: float,
        attack: Matching,
        observation: Observation,
        attacker: Attacker,
        best: BestReading,
    ) -> str | None:
        """Runs one iterative attack; returns why its result does not count, or None if it does."""
        try:
            result = attempt(attack, observation, seconds)
        except KeyholeError as error:
            return str(error)
        count = result.iterations
        name = f"{attack.name} ({attacker}, {count} iterations)"
        if best.add(name, result.found.images, enough=result.enough):
            return None
        fit = "1 iteration fits" if count == 1 else f"{count} iterations fit"
        return f"{fit} into the time, too few: give it more seconds"

    def _build_knowledge(self, attack: Attack, attacker: Attacker, labels: Tensor) -> Knowledge:
        return Knowledge(
            shape=self.data.shape,
            classes=len(self.data.classes),
            mean=self.data.mean,
            std=self.data.std,
            batch_size=len(labels),
            labels=labels.clone() if "labels" in attack.given else None,
            client_mode=self.mode,
            defense=None if attacker is Attacker.NAIVE else self.defense,
            adaptive=attacker is Attacker.ADAPTIVE,
        )

    def _list_doubts(self) -> tuple[str, ...]:
        """Why attacks may have looked weaker than they are."""
        assumed = (note_captured_assumption(self.data),) if self.assumed_normalisation else ()
        return (*assumed, *describe_batch_norms(self.model, self.mode, mode_given=True))


ClientData = tuple[nn.Module, ImageSet, Tensor, Tensor]
"""A node's model, the image set it is from, its images in [0, 1] and their labels."""


def guard_mod(
    threshold: float = READ_SSIM,
    *,
    client: Callable[[Any], ClientData],
    defense: Defense | None = None,
    mode: ClientMode = "train",
    warn: bool = False,
    seconds: float = SECONDS,
    untested: Literal["withhold", "warn"] = "withhold",
) -> Any:
    """A Flower client mod that withholds an update which would leak, or only warns.

    Put the mod outermost, so that it sees the update as the server would:
    ``ClientApp(mods=[guard_mod(...), as_mod(...)])``.

    Args:
        threshold: The SSIM, 0 to 1, from which an image counts as read.
        client: Returns a node's model, image set, images ``[n, C, H, W]`` in [0, 1] and labels
            ``[n]``; it is called with the node's context.
        defense: The defense that updates go through; the guard's attackers know it.
        mode: The mode in which clients train.
        warn: Whether to withhold nothing and only write a warning to the log.
        seconds: Time for iterative attacks in each round; 0 tries none of them.
        untested: What happens to an update on which no attack could be tried: ``withhold`` it, or
            ``warn`` in the log and let it leave.
    """
    from keyhole.federation.flower import before_upload

    check_threshold(threshold)
    check_seconds(seconds)
    if untested not in ("withhold", "warn"):
        raise BadValue(f"untested: it is 'withhold' or 'warn', got {untested!r}")

    def check(update: Update, weights: dict[str, Tensor], context: Any) -> str | None:
        model, data, images, labels = client(context)
        load_tensors(model, weights, "the server's message")
        update.check_against(model.state_dict())  # what other tensors would tell is unknown
        own = {name for name, _ in model.named_parameters()}
        change = {name: tensor for name, tensor in update.change.items() if name in own}
        guard = Guard(
            model=model,
            data=data,
            threshold=threshold,
            defense=defense,
            mode=mode,
            seconds=seconds,
        )
        found = guard(Update(change, examples=len(images)), images, labels)
        if found.leaks is False:
            return None
        log.warning("keyhole: %s", found.words)
        passes = warn or (found.leaks is None and untested == "warn")
        return None if passes else found.words

    return before_upload(check)


def subtract_weights(before: dict[str, Tensor], after: dict[str, Tensor]) -> dict[str, Tensor]:
    """What training changed, from two sets of weights of the same model."""
    strangers = sorted(set(before) ^ set(after))
    if strangers:
        raise BadUpdate(f"the two files hold different models: {strangers[0]!r} is in one only")
    for name, tensor in after.items():
        if tensor.shape != before[name].shape:
            raise BadUpdate(f"the two files hold different models: {name!r} differs in shape")
    return {name: after[name] - before[name] for name in after}
