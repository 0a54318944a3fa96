"""Local training that several defenses of a stage have in common: done once, and kept.

A defense that only changes updates leaves its client's training as it is without the defense, to
the bit: so do the client without a defense, and the training that a check compares with.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from keyhole.defenses import Defense
from keyhole.defenses.base import uses_door
from keyhole.federation.client import TrainLocally, compute_local_update
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.update import Update

DOORS_IN_TRAINING = ("on_images", "on_model", "on_step")
BYTES_KEPT = 1 << 29
"""Bytes of updates kept; the training of further clients is repeated."""


@dataclass(frozen=True)
class KeptTraining:
    """One client's update as it is before a defense changes it.

    Args:
        model: The global model; while it is held, no other object has its ``id``.
        update: The update.
        masks: The masks that the client drew.
        seconds: How long the training took.
    """

    model: nn.Module
    update: Update
    masks: tuple[tuple[Tensor, ...], ...]
    seconds: float


@dataclass(eq=False)
class TrainedClients:
    """The clients of a stage who trained already; ``spared_seconds`` is the time that it saved."""

    kept: dict[Any, KeptTraining] = field(default_factory=dict)
    bytes_kept: int = 0
    spared_seconds: float = 0.0

    def choose(
        self, model: nn.Module, indices: Sequence[int], defense: Defense
    ) -> TrainLocally | None:
        """What trains a client on these images; None where a defense has a hand in the training.

        On a GPU nothing is kept either: training is quick there, and memory is short.
        """
        if any(uses_door(defense, door) for door in DOORS_IN_TRAINING):
            return None
        if next(model.parameters()).is_cuda:
            return None
        return partial(self._train, tuple(indices))

    def clear(self) -> None:
        """Forgets all updates."""
        self.kept.clear()
        self.bytes_kept = 0

    def _train(
        self,
        indices: tuple[int, ...],
        model: nn.Module,
        inputs: Tensor,
        labels: Tensor,
        *,
        seed: int,
        mask_recorder: MaskRecorder | None = None,
        **how: Any,
    ) -> Update:
        """:func:`compute_local_update`, or what it returned for this client before."""
        recorder = mask_recorder or MaskRecorder()
        key = (id(model), indices, seed)
        found = self.kept.get(key)
        if found is None:
            began = time.perf_counter()
            update = compute_local_update(
                model, inputs, labels, seed=seed, mask_recorder=recorder, **how
            )
            masks = tuple(tuple(step) for step in recorder.masks)
            found = KeptTraining(model, update, masks, time.perf_counter() - began)
            size = sum(tensor.nbytes for tensor in update.change.values())
            if self.bytes_kept + size > BYTES_KEPT:
                return update
            self.kept[key] = found
            self.bytes_kept += size
        else:
            recorder.masks = [list(step) for step in found.masks]
            self.spared_seconds += found.seconds
        change = {name: tensor.clone() for name, tensor in found.update.change.items()}
        return replace(found.update, change=change)
