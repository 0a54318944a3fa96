"""What tests of trainings share: a small plan, and how two of them are compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from keyhole.federation import TrainingPlan
from keyhole.update import read_safetensors

PLAN = TrainingPlan(clients=3, images=8, rounds=3, epochs=1, batch_size=4, together="no")
OPTIONS = ("--clients", "3", "--images", "8", "--epochs", "1", "--batch-size", "4")
SMALL = ("train", "--data", "digits", "--model", "mlp", *OPTIONS, "--together", "no")
"""The same on the command line."""


def weights_of(folder: Path) -> dict[str, Tensor]:
    return read_safetensors(folder / "checkpoint.safetensors")[0]


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def timeless(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
