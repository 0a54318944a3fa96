"""Unscramblers on disk, and the one that comes with Keyhole."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from pathlib import Path

import torch
from safetensors.torch import save_file

from keyhole.attacks.unshuffle.learned.network import Unscrambler
from keyhole.errors import BadUpdate, DataMissing
from keyhole.models.weights import fill
from keyhole.seeds import seeded_globally
from keyhole.update import read_safetensors

SHIPPED = "regions8.safetensors"
HEADER = "unscrambler"
"""The header's entry that says how the network is built and what it was trained on."""


def save_unscrambler(
    network: Unscrambler, path: Path, *, trained_on: str, steps: int, seed: int
) -> None:
    """Writes the weights in float16; the plan, and where they come from, in the header."""
    weights = {
        name: tensor.detach().to("cpu", torch.float16).contiguous()
        for name, tensor in network.state_dict().items()
    }
    plan = {
        "side": network.side,
        "width": network.width,
        "depth": network.depth,
        "heads": network.heads,
        "trained_on": trained_on,
        "steps": steps,
        "seed": seed,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, {HEADER: json.dumps(plan)})


@cache
def load_unscrambler(path: Path | None = None) -> Unscrambler:
    """The unscrambler in a file (None: the one that comes with Keyhole), read once.

    In float32 on the CPU, in evaluation mode, its weights fixed.
    """
    if path is not None:
        return read_unscrambler(path.expanduser())
    shipped = resources.files("keyhole.attacks.unshuffle.learned") / "weights" / SHIPPED
    with resources.as_file(shipped) as file:
        return read_unscrambler(file)


def read_unscrambler(path: Path) -> Unscrambler:
    if not path.is_file():
        raise DataMissing(
            f"there is no unscrambler at {path}: install Keyhole again, or train one with "
            "python -m keyhole.attacks.unshuffle.learned OUT.safetensors"
        )
    weights, header = read_safetensors(path)
    network = planned(header, path)
    fill(network, {name: tensor.float() for name, tensor in weights.items()}, str(path))
    return network.eval().requires_grad_(False)


def planned(header: dict[str, str], path: Path) -> Unscrambler:
    """An untrained network built as a file's header says."""
    try:
        plan = json.loads(header[HEADER])
        side, width, depth, heads = (int(plan[k]) for k in ("side", "width", "depth", "heads"))
        with seeded_globally(0):
            return Unscrambler(side, width, depth, heads)
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise BadUpdate(
            f"{path} does not say what unscrambler it holds: write it with save_unscrambler"
        ) from None
