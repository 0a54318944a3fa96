"""Runs of gradient matching that are watched, interrupted, poisoned and starved of memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.attacks import InvertingGradients, Reconstruction
from keyhole.attacks.checkpointer import NullCheckpointer, Saved
from keyhole.attacks.matching.engine import Engine

Clients = Callable[..., list[Any]]
CHECK_INTERVAL, ITERATIONS = 5, 20
ATTACK = InvertingGradients(iterations=ITERATIONS, lr=0.1, tv=1e-4)


class Interrupted(Exception):
    pass


class MemoryCheckpointer(NullCheckpointer):
    """Saves after every look, as if to disk; interrupts the attack at look number ``until``."""

    def __init__(
        self,
        saved: Saved | None = None,
        *,
        victims_at_once: int | None = None,
        until: int | None = None,
    ) -> None:
        self.saved, self.victims_at_once, self.until = saved, victims_at_once, until
        self.looks: list[tuple[int, int, str]] = []

    def load(self) -> Saved | None:
        return self.saved

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        kept = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        self.saved = kept, json.loads(json.dumps(facts))

    def due(self) -> bool:
        return True

    def watch(self, done: int, total: int, text: str) -> None:
        self.looks.append((done, total, text))
        if len(self.looks) == self.until:
            raise Interrupted


def run(
    seen: Sequence[Any],
    checkpointer: NullCheckpointer | None = None,
    attack: InvertingGradients = ATTACK,
) -> list[Reconstruction]:
    return list(attack.on_many(seen, checkpointer))


def check_close(found: Sequence[Reconstruction], expected: Sequence[Reconstruction]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.images is not None
        torch.testing.assert_close(one.images, other.images, rtol=1e-6, atol=1e-6)
        assert one.diagnostics == pytest.approx(other.diagnostics, abs=1e-7)


def check_equal(found: Sequence[Reconstruction], expected: Sequence[Reconstruction]) -> None:
    """Bit for bit."""
    for one, other in zip(found, expected, strict=True):
        for a, b in ((one.images, other.images), (one.confidence, other.confidence)):
            assert (a is None and b is None) or torch.equal(a, b)
        assert one.loss_curve == other.loss_curve
        assert [when for when, _ in one.frames] == [when for when, _ in other.frames]
        for (_, a), (_, b) in zip(one.frames, other.frames, strict=True):
            assert torch.equal(a, b)
        assert one.diagnostics == other.diagnostics
        assert one.notes == other.notes


def poison(
    monkeypatch: pytest.MonkeyPatch, victim: int, when: Callable[[Tensor], bool] = lambda _: True
) -> None:
    """Makes one victim's loss NaN in the steps that ``when`` picks by the victims' iterations."""
    loss = Engine.loss

    def poisoned(self: Engine, values: Any, state: dict[str, Tensor], matcher: Any) -> Tensor:
        factor = torch.ones_like(state["loss"])
        if when(state["iterations"]):
            factor[state["victim"] == victim] = math.nan
        return factor * loss(self, values, state, matcher)

    monkeypatch.setattr(Engine, "loss", poisoned)


def at(iteration: int) -> Callable[[Tensor], bool]:
    """When the victim that got furthest has done so many iterations: only once."""
    return lambda iterations: int(iterations.max()) == iteration


def starve(monkeypatch: pytest.MonkeyPatch, most: int, after: int = 0) -> None:
    """Lets a step run out of memory with more than ``most`` victims, after so many steps."""
    step = Engine.step
    count = iter(range(1_000_000))

    def starved(self: Engine, state: dict[str, Tensor], matcher: Any) -> None:
        if len(state["victim"]) > most and next(count) >= after:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")
        step(self, state, matcher)

    monkeypatch.setattr(Engine, "step", starved)
