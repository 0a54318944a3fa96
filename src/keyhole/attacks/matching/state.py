"""The state of an attack: tensors with a victim axis, and each victim's history and outcome."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

State = dict[str, Tensor]
"""Tensors ``[N, ...]`` of N victims, by name."""
KNOWN = "given."
"""Prefix of tensors that are known from the start: never changed, never saved."""


@dataclass
class History:
    """What is recorded about one victim while it is attacked."""

    losses: list[tuple[int, float]] = field(default_factory=list)
    """Iteration and loss."""
    frames: list[tuple[int, Tensor]] = field(default_factory=list)
    """Iteration and the best images so far, float16 on the CPU."""
    restarts: int = 0
    failed: bool = False

    @property
    def last_iteration(self) -> int:
        """The last iteration whose loss was recorded."""
        return self.losses[-1][0] if self.losses else 0


@dataclass
class Outcome:
    """The result for one victim."""

    loss: float
    iterations: int
    best: dict[str, Tensor]
    """The unknowns at the least loss."""


def align_axes(value: Tensor, like: Tensor) -> Tensor:
    """``value [N]`` as ``[N, 1, ...]`` with as many axes as ``like``."""
    return value.view(-1, *(1 for _ in like.shape[1:]))


def select_rows(state: State, rows: Tensor) -> State:
    """The state of some of the victims, copied."""
    return {name: tensor[rows].clone() for name, tensor in state.items()}


def overwrite_rows(state: State, rows: Tensor, other: State) -> None:
    """Overwrites the state of some victims in place."""
    for name, tensor in state.items():
        if name in other:
            tensor[rows] = other[name]


def assign_where(condition: Tensor, new: Tensor, old: Tensor) -> None:
    """``old = new`` in place for the victims where ``condition`` holds."""
    old.copy_(torch.where(align_axes(condition, old), new, old))
