"""Unscramblers on disk, and the shipped one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from keyhole.attacks.jigsaw.learned.network import Unscrambler
from keyhole.models.shipped import ShippedNetwork


def build_unscrambler(plan: Mapping[str, Any]) -> Unscrambler:
    """An unscrambler with the dimensions that its file states."""
    return Unscrambler(*(int(plan[part]) for part in ("side", "width", "depth", "heads")))


UNSCRAMBLERS = ShippedNetwork(
    "unscrambler",
    build_unscrambler,
    shipped=("keyhole.attacks.jigsaw.learned", "regions8.safetensors"),
    advice="install Keyhole again, or train one with python tools/train_unscrambler.py "
    "OUT.safetensors",
    writer="save_unscrambler",
)


def save_unscrambler(
    network: Unscrambler, path: Path, *, trained_on: str, steps: int, seed: int
) -> None:
    """Writes an unscrambler's weights and dimensions, and how it was trained, to a file.

    Args:
        network: The unscrambler.
        path: The safetensors file.
        trained_on: The images it was trained on, in words.
        steps: The number of training steps.
        seed: The seed of the training.
    """
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
    """Loads an unscrambler in evaluation mode, once.

    Args:
        path: Its file; None: the unscrambler that is shipped with Keyhole.
    """
    return UNSCRAMBLERS.load(path)
