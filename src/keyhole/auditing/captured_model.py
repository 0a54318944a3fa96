"""The model that a server sent in each captured round."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

import torch
from torch import nn

from keyhole.atomic import digest_of
from keyhole.attacks import ATTACKS, Attack, Imprint
from keyhole.auditing.captured_clients import compute_max_bytes, give_names, refuse_complex
from keyhole.auditing.captured_training import MAX_STEPS
from keyhole.auditing.claimed_defenses import MAX_CLAIM, choose_defense, parse_claim
from keyhole.auditing.plan import Stage
from keyhole.data import ImageSet
from keyhole.defenses import Defense
from keyhole.errors import BadUpdate, KeyholeError, RunFolderError
from keyhole.federation.capture import GLOBAL, JsonObject, is_integer
from keyhole.federation.capture_reader import CapturedRound
from keyhole.models import build
from keyhole.models.fine_tuning import fine_tune
from keyhole.models.shares import FINE_TUNINGS
from keyhole.models.weights import load_tensors
from keyhole.threat import PublicKnowledge, Server
from keyhole.untrusted import printable

MAX_CLAIMS = 4
"""Different defenses claimed in one round that are tried to find the model."""


class CapturedModel:
    """The model as the server sent it in each round: one object, whose weights change."""

    def __init__(
        self,
        stage: Stage,
        data: ImageSet,
        seed: int,
        device: torch.device,
        about: JsonObject | None = None,
    ) -> None:
        self.stage, self.device, self.data, self.about = stage, device, data, about or {}
        built = build(
            stage.model,
            classes=len(data.classes),
            channels=data.shape[0],
            image_size=data.size,
            seed=seed,
        )
        self.plain = fine_tune(built, stage.share or read_share(self.about))
        self.defended: dict[str, nn.Module] = {}
        if "defenses" in stage.model_fields_set:
            choose_defense({}, stage)  # raises here, not in every round

    @property
    def alteration(self) -> str | None:
        """What a malicious server changed in the model, and for which attack; None: nothing."""
        words = self.about.get("altered_model")
        if not isinstance(words, str):
            return None
        attack = printable(self.about.get("attack"), MAX_CLAIM)
        return f"{printable(words, MAX_CLAIM)} (for the attack {attack})"

    def load_round(self, captured_round: CapturedRound) -> nn.Module:
        """The model with a round's weights, valid until another round is loaded."""
        for defense in self._list_claimed_defenses(captured_round):
            with suppress(KeyholeError):
                return self._load_weights(defense, captured_round)
        defense = choose_defense(captured_round.config, self.stage)
        return self._load_weights(defense, captured_round)

    def open_server(self, captured_round: CapturedRound, digest: str) -> Server:
        """A round's server; raises if the weights in the folder no longer have this digest."""
        model = self.load_round(captured_round)
        if digest_of(model.state_dict()) != digest:
            raise RunFolderError(f"{captured_round.folder} has changed while it was audited")
        return Server(model)

    def _list_claimed_defenses(self, captured_round: CapturedRound) -> list[Defense]:
        """Defenses that clients claim and that would add parameters to the model."""
        if "defenses" in self.stage.model_fields_set:
            return []
        texts = dict.fromkeys(str(c.get("defense", "none")) for c in captured_round.clients)
        claims = [claim for text in texts if (claim := parse_claim(text)) is not None]
        fitting = [c for c in claims[:MAX_CLAIMS] if not c.incompatibilities(self.plain)]
        return [claim for claim in fitting if claim.prepare_model(self.plain) is not self.plain]

    def _prepare_model(self, defense: Defense, captured_round: CapturedRound) -> nn.Module:
        """The model under a defense, with the layer that a malicious server added, if it did."""
        prepared = defense.prepare_model(self.plain)
        attack = find_adding_attack(self.about)
        public = read_public_knowledge(self.about, self.data)
        if attack is None or public is None:
            return prepared
        weights = captured_round.folder / GLOBAL
        rows = public.clients * (1 if attack.form == "one-shot" else attack.bins)
        if not weights.is_file() or 4 * rows * prod(public.shape) > weights.stat().st_size:
            raise BadUpdate(f"the captured model lacks the layer that {attack} adds")
        return attack.alter(prepared, public)

    def _load_weights(self, defense: Defense, captured_round: CapturedRound) -> nn.Module:
        """The model under a defense with a round's weights; raises if they do not fit."""
        known = self.defended.get(str(defense))
        model = known or self._prepare_model(defense, captured_round).to(self.device)
        max_bytes = compute_max_bytes(model.state_dict())
        weights = give_names(captured_round.read_weights(max_bytes), model)
        refuse_complex(weights)
        load_tensors(model, weights, "the captured model")
        self.defended[str(defense)] = model
        return model


def read_share(about: JsonObject) -> str | None:
    """What clients trained and sent, as a captured folder says; None if it says nothing known."""
    text = about.get("share")
    if not isinstance(text, str) or len(text) > MAX_CLAIM:
        return None
    try:
        FINE_TUNINGS.parse(text)
    except KeyholeError:
        return None
    return text


def find_adding_attack(about: JsonObject) -> Imprint | None:
    """The attack by which a malicious server added a layer to the model; None if it added none."""
    attack = find_claimed_attack(about)
    return attack if isinstance(attack, Imprint) else None


def find_claimed_attack(about: JsonObject) -> Attack | None:
    """The attack that a captured folder names; None if it is not one of Keyhole's own."""
    text = str(about.get("attack", ""))
    if len(text) > MAX_CLAIM:
        return None
    with suppress(KeyholeError):
        return ATTACKS.parse_builtin(text)
    return None


def read_public_knowledge(about: JsonObject, data: ImageSet) -> PublicKnowledge | None:
    """What a malicious server knew as far as it decides about layers; the images do not."""
    names = ("public-batch-size", "public-steps", "public-clients")
    values: list[Any] = [about.get(name) for name in names]
    if not all(is_integer(value) and 1 <= value <= MAX_STEPS for value in values):
        return None
    return PublicKnowledge(
        data.shape, len(data.classes), torch.zeros(2, *data.shape), *(int(v) for v in values)
    )
