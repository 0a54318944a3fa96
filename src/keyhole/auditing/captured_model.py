"""The model that a server sent in each captured round."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import nn

from keyhole.atomic import digest_of
from keyhole.auditing.captured_clients import compute_max_bytes, give_names, refuse_complex
from keyhole.auditing.claimed_defenses import choose_defense, parse_claim
from keyhole.auditing.plan import Stage
from keyhole.data import ImageSet
from keyhole.defenses import Defense
from keyhole.errors import KeyholeError, RunFolderError
from keyhole.federation.capture_reader import CapturedRound
from keyhole.models import build
from keyhole.models.weights import load_tensors
from keyhole.threat import Server

MAX_CLAIMS = 4
"""Different defenses claimed in one round that are tried to find the model."""


class CapturedModel:
    """The model as the server sent it in each round: one object, whose weights change."""

    def __init__(self, stage: Stage, data: ImageSet, seed: int, device: torch.device) -> None:
        self.stage, self.device = stage, device
        self.plain = build(
            stage.model,
            classes=len(data.classes),
            channels=data.shape[0],
            image_size=data.size,
            seed=seed,
        )
        self.defended: dict[str, nn.Module] = {}
        if "defenses" in stage.model_fields_set:
            choose_defense({}, stage)  # raises here, not in every round

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

    def _load_weights(self, defense: Defense, captured_round: CapturedRound) -> nn.Module:
        """The model under a defense with a round's weights; raises if they do not fit."""
        known = self.defended.get(str(defense))
        model = known or defense.prepare_model(self.plain).to(self.device)
        max_bytes = compute_max_bytes(model.state_dict())
        weights = give_names(captured_round.read_weights(max_bytes), model)
        refuse_complex(weights)
        load_tensors(model, weights, "the captured model")
        self.defended[str(defense)] = model
        return model
