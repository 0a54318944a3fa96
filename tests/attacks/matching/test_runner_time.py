"""Runs that must end by a deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.attacks.matching.engine import Engine
from matching_runs import (
    MemoryCheckpointer,
    check_equal,
    run,
)

pytestmark = pytest.mark.usefixtures("one_thread", "look_often")


@pytest.mark.parametrize("at_once", [None, 2])
def test_an_attack_out_of_time_ends_with_what_it_has(seen: list[Any], at_once: int | None) -> None:
    checkpointer = MemoryCheckpointer(victims_at_once=at_once)
    checkpointer.deadline = time.monotonic() - 1
    found = run(seen, checkpointer)
    assert [each.diagnostics["iterations"] for each in found] == [1.0] * len(seen)
    assert all(each.images is not None and each.diagnostics["failed"] == 0 for each in found)


def test_a_deadline_far_away_changes_nothing(seen: list[Any]) -> None:
    checkpointer = MemoryCheckpointer()
    checkpointer.deadline = time.monotonic() + 3600
    check_equal(run(seen, checkpointer), run(seen, MemoryCheckpointer()))


def test_a_victim_without_a_finite_loss_has_failed_when_time_runs_out(
    seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(engine: Engine, values: dict[str, Tensor], *_: Any) -> Tensor:
        return values["pixels"].flatten(1).sum(1) * torch.nan

    monkeypatch.setattr(Engine, "loss", lost)
    checkpointer = MemoryCheckpointer()
    checkpointer.deadline = time.monotonic() - 1
    found = run(seen, checkpointer)
    assert all(each.images is None and each.diagnostics["failed"] == 1 for each in found)
