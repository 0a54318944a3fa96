"""What server and clients must agree on: the run's settings, the data, who holds which images."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torch import nn

from keyhole.attacks import ATTACKS, Attack, Imprint
from keyhole.errors import RunFolderError
from keyhole.federation import CaptureWriter, Federation, TrainingPlan, build_federation
from keyhole.settings import make_settings
from keyhole.threat import PublicKnowledge

PUBLIC_IMAGES = 128
Settings = Mapping[str, Any]
"""A run's settings, as ``[tool.flwr.app.config]`` in pyproject.toml has them."""


def plan_of(settings: Settings) -> TrainingPlan:
    """The run's settings in Keyhole's words."""
    return make_settings(
        TrainingPlan,
        {
            "model": settings["model"],
            "data": settings["data"],
            "image_size": settings["image-size"] or None,
            "defense": settings["defense"],
            "clients": settings["clients"],
            "rounds": settings["num-server-rounds"],
            "images": settings["images"],
            "epochs": settings["local-epochs"],
            "steps": settings["local-steps"] or None,
            "batch_size": settings["batch-size"],
            "lr": settings["lr"],
            "momentum": settings["momentum"],
            "client_mode": settings["client-mode"],
            "seed": settings["seed"],
        },
    )


def federation_of(settings: Settings) -> Federation:
    """The model, the data and the clients' shares: the same on every machine by the same seed."""
    return _build_federation(plan_of(settings), str(settings["data-dir"]) or None)


@cache
def _build_federation(plan: TrainingPlan, data_dir: str | None) -> Federation:
    return build_federation(plan, data_dir=data_dir)


def attack_of(settings: Settings) -> Attack | None:
    """The attack of a lying server; None if the server is honest but curious."""
    return ATTACKS.parse(str(settings["attack"])) if settings["attack"] else None


def public_of(settings: Settings) -> PublicKnowledge:
    """What a lying server knows: images that no client holds, and how clients train."""
    plan, federation = plan_of(settings), federation_of(settings)
    data, held_out = federation.test
    return PublicKnowledge(
        shape=data.shape,
        classes=len(data.classes),
        images=data.normalise(data.images(held_out[:PUBLIC_IMAGES])),
        batch_size=plan.images or plan.batch_size,
        steps=plan.steps or 1,
        clients=plan.clients if settings["secure-aggregation"] else 1,
    )


def sent_model(settings: Settings) -> nn.Module:
    """A model for a client to train: with the layer that a lying server added, if it did.

    Clients of other apps have no such line. They cannot be attacked by attacks that add a layer.
    """
    model, attack = federation_of(settings).model, attack_of(settings)
    if not isinstance(attack, Imprint):
        return copy.deepcopy(model)
    return attack.alter(model, public_of(settings))


def lying_options(settings: Settings) -> dict[str, Any]:
    """What ``malicious`` needs beside a strategy's own options; {} if the server is honest."""
    attack = attack_of(settings)
    if attack is None:
        return {}
    return {
        "attack": attack,
        "model": federation_of(settings).model,
        "public": public_of(settings),
        "i_own_these_clients": settings["i-own-these-clients"],
    }


def empty_folder(settings: Settings) -> Path:
    """The folder to capture into; rounds of another run must not mix with this one's."""
    folder = Path(str(settings["capture"])).expanduser().resolve()
    if any(folder.glob("round-*")):
        raise RunFolderError(f"{folder} holds another run's rounds: remove it, or name another")
    return folder


def write_truth(writer: CaptureWriter, settings: Settings) -> None:
    """Writes which images each client holds: for scoring alone, no server has it."""
    plan, federation = plan_of(settings), federation_of(settings)
    owners = {str(client): share for client, share in enumerate(federation.shares)}
    writer.write_truth(plan.data, owners, image_size=plan.image_size)
