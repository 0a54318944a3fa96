"""A client's look at its own update before it leaves: would attacks read it in half a minute?

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

from keyhole.attacks import (
    CLOSED_FORM,
    ITERATIVE,
    Attack,
    Gifd,
    InvertingGradients,
    LabelInference,
    Matching,
)
from keyhole.attacks.checkpointer import NullCheckpointer
from keyhole.auditing.best_reading import BestReading
from keyhole.auditing.client_normalisation import attack_by_best_fit, describe_assumption
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
"""How long iterative attacks may take, where nobody says."""
MANY = 64
"""Images of a client up to which iterative attacks are tried."""

log = logging.getLogger("keyhole")


class Guard:
    """Attacks a client's own update by what it can in ``seconds``, and scores it.

    An update leaks if an image is seen with an SSIM of ``threshold`` or more, and better than a
    plain grey picture would show it. ``defense`` is what the update went through: the guard's
    attackers know it. Closed forms come first; where they read nothing, iterative attacks take the
    ``seconds`` (0: none of them). Where ``data``'s mean and std are only assumed, closed forms may
    find that others fit.
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
        self.attacks: list[Attack] = [
            member() for member in CLOSED_FORM if member.altered_model is None
        ]

    @torch.no_grad()
    def __call__(
        self,
        update: Update,
        images: Tensor,
        labels: Tensor,
        others: tuple[Tensor, Tensor] | None = None,
    ) -> SelfCheck:
        """Checks ``update``, which came of ``images`` in [0, 1] and their labels.

        ``others`` are images and labels that the client did not train on, if it has any: they tell
        how well the update's own images can be told from them.
        """
        server = Server(self.model)
        best = BestReading(images, self.data, self.threshold)
        for attack in (a for a in self.attacks if a.reads_images):
            for attacker in choose_attackers(attack, self.defense):
                seen = server.receive(update, self.knowledge(attack, attacker, labels))
                name = f"{attack.name} ({attacker})"
                if (absent := name_missing(attack, seen)) is not None:
                    best.not_tried.append(NotTried(name, absent))
                elif not attack.incompatibilities(seen):
                    best.add(name, *self.reconstruct(attack, seen))
        if not best.leaks:
            self.try_iterative(server, update, labels, best)
        told = server.receive(update, self.knowledge(LabelInference(), Attacker.NAIVE, labels))
        return replace(
            best.to_self_check(),
            labels=infer_labels(told, labels),
            membership=compare_losses(told, self.data, (images, labels), others),
            notes=() if best.leaks else self.list_doubts(),
        )

    def list_doubts(self) -> tuple[str, ...]:
        """Why attacks may have looked weaker than they are."""
        assumed = (describe_assumption(self.data),) if self.assumed_normalisation else ()
        return (*assumed, *describe_batch_norms(self.model, self.mode, mode_given=True))

    def reconstruct(self, attack: Attack, seen: Observation) -> tuple[Tensor | None, Normalisation]:
        """What a closed form finds, and by which normalisation that becomes pixels."""
        own = Normalisation.of(self.data)
        if not (self.assumed_normalisation and attack.recovers_inputs):
            return attack(seen).images, own
        found, by = next(attack_by_best_fit(attack, [seen], NullCheckpointer(), own))
        return found.images, by

    def try_iterative(
        self, server: Server, update: Update, labels: Tensor, best: BestReading
    ) -> None:
        """Lets iterative attacks look for as long as the time lasts and nothing has been read."""
        waiting = [
            (attack, attacker)
            for attack in choose_iterative(self.defense, self.data.shape)
            for attacker in reversed(choose_attackers(attack, self.defense))
        ]
        began = time.monotonic()
        while waiting and not best.leaks:
            attack, attacker = waiting.pop(0)
            seen = server.receive(update, self.knowledge(attack, attacker, labels))
            left = self.seconds - (time.monotonic() - began)
            why = self.why_not(attack, seen)
            if why is None:
                why = self.try_for(left / (1 + len(waiting)), attack, seen, attacker, best)
            if why is not None:
                best.not_tried.append(NotTried(f"{attack.name} ({attacker})", why))

    def try_for(
        self,
        seconds: float,
        attack: Matching,
        seen: Observation,
        who: Attacker,
        best: BestReading,
    ) -> str | None:
        """One iterative attack; why what it found does not count, or None where it does."""
        try:
            made = attempt(attack, seen, seconds)
        except KeyholeError as error:
            return str(error)
        name = f"{attack.name} ({who}, {made.iterations} iterations)"
        if best.add(name, made.found.images, enough=made.enough):
            return None
        fit = "1 iteration fits" if made.iterations == 1 else f"{made.iterations} iterations fit"
        return f"{fit} into the time, too few: give it more seconds"

    def why_not(self, attack: Matching, seen: Observation) -> str | None:
        """Why an iterative attack is not tried; None where it is."""
        if not self.seconds:
            return "it takes time, and 0 seconds were given"
        count = seen.knowledge.batch_size
        if count > MANY:
            return f"it cannot take {count} images in so short a time, {MANY} at most"
        return "; ".join(attack.incompatibilities(seen)) or name_missing(attack, seen)

    def knowledge(self, attack: Attack, attacker: Attacker, labels: Tensor) -> Knowledge:
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


def name_missing(attack: Attack, seen: Observation) -> str | None:
    """What an attack that fits the model would read, and the update does not have, in words."""
    absent = (
        []
        if attack.incompatibilities(seen)
        else sorted(attack.reads(seen) - set(seen.update.change))
    )
    return f"it reads {absent[0]!r}, which the update does not have" if absent else None


def choose_iterative(defense: Defense | None, shape: tuple[int, int, int]) -> list[Matching]:
    """The iterative attacks worth a client's time, those that know most of the defense first."""
    known = defense or NoDefense()
    own = [m() for m in ITERATIVE if m.only_adaptive and m().knows(known)]
    prior = [Gifd()] if Gifd().generates(shape) else []
    found: list[Attack] = [*own, InvertingGradients(), *prior]
    return [attack for attack in found if isinstance(attack, Matching)]


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

    ``client`` gives a node's own model and images from its context. Put the mod outermost, so that
    it sees the update as the server would: ``ClientApp(mods=[guard_mod(...), as_mod(...)])``.
    Each round takes up to ``seconds``. An update on which nothing could be tried is withheld as
    well, unless ``untested="warn"``: it leaves then, with a warning in the log. With ``warn``
    nothing is withheld.
    """
    from keyhole.federation.flower import before_upload

    check_threshold(threshold)
    check_seconds(seconds)
    if untested not in ("withhold", "warn"):
        raise BadValue(f"untested: it is 'withhold' or 'warn', got {untested!r}")

    def check(update: Update, weights: dict[str, Tensor], context: Any) -> str | None:
        model, data, images, labels = client(context)
        load_tensors(model, weights, "the server's message")
        update.check_against(model.state_dict())  # of anything else nobody knows what it tells
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
