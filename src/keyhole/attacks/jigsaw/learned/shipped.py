"""Unscramblers on disk, and the one that comes with Keyhole."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from keyhole.attacks.jigsaw.learned.network import Unscrambler
from keyhole.models.shipped import ShippedNetwork


def built(plan: Mapping[str, Any]) -> Unscrambler:
    return Unscrambler(*(int(plan[part]) for part in ("side", "width", "depth", "heads")))


UNSCRAMBLERS = ShippedNetwork(
    "unscrambler",
    built,
    shipped=("keyhole.attacks.jigsaw.learned", "regions8.safetensors"),
    advice="install Keyhole again, or train one with python tools/train_unscrambler.py "
    "OUT.safetensors",
    writer="save_unscrambler",
)


def save_unscrambler(
    network: Unscrambler, path: Path, *, trained_on: str, steps: int, seed: int
) -> None:
    """Writes an unscrambler, how it is built, and where its weights come from."""
    plan = {
        "side": network.side,
        "width": network.width,
        "depth": network.depth,
        "heads": network.heads,
        "trained_on": trained_on,
        "steps": steps,
        "seed": seed,
    }
    UNSCRAMBLERS.save(network, path, plan)


@cache
def load_unscrambler(path: Path | None = None) -> Unscrambler:
    """The unscrambler in a file (None: the one that comes with Keyhole), read once."""
    return UNSCRAMBLERS.load(path)
