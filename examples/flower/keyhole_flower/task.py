"""What server and clients must agree on: the run's settings, the data, who holds which images."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from keyhole.federation import Federation, TrainingPlan, build_federation
from keyhole.settings import make_settings

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
