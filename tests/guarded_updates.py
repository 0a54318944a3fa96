"""Updates of small clients, for tests of the guard."""

from __future__ import annotations

from typing import Any

from torch import nn

from keyhole.data import ImageSet, load
from keyhole.federation import (
    LocalTraining,
    compute_local_update,
)
from keyhole.update import Update

digits = load("digits")


def uploaded(
    model: nn.Module, indices: list[int], data: ImageSet = digits, **training: Any
) -> Update:
    return compute_local_update(
        model,
        data.normalise(digits.images(indices)),
        digits.labels[indices],
        training=LocalTraining(lr=0.1, **training),
        seed=0,
    )
