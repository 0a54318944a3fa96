"""The state of an attack: tensors with a victim axis, and what is noted of each victim."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from keyhole.attacks.matching.optimisers import State, spread

GIVEN = "given."
"""Prefix of tensors that are known from the start: never changed, never saved."""


@dataclass
class History:
    """What is noted of one victim while it is attacked."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """Iteration and loss."""
    frames: list[tuple[int, Tensor]] = field(default_factory=list)
    """Iteration and the best images so far, float16 on the CPU."""
    restarts: int = 0
    failed: bool = False

    @property
    def noted(self) -> int:
        """The last iteration whose loss was noted."""
        return self.losses[-1][0] if self.losses else 0


@dataclass
class Outcome:
    """What is left of one victim when it is done."""

    loss: float
    iterations: int
    best: dict[str, Tensor]
    """The unknowns at the least loss."""


def select(state: State, rows: Tensor) -> State:
    """Some of the victims."""
    return {name: tensor[rows].clone() for name, tensor in state.items()}


def put(state: State, rows: Tensor, other: State) -> None:
    """Overwrites some victims in place."""
    for name, tensor in state.items():
        if name in other:
            tensor[rows] = other[name]


def keep(condition: Tensor, new: Tensor, old: Tensor) -> None:
    """``old = new`` in place for the victims where ``condition`` holds."""
    old.copy_(torch.where(spread(condition, old), new, old))
