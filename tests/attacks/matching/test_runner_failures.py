"""Victims whose loss breaks down, and batches that memory does not suffice for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.attacks import Reconstruction
from keyhole.attacks.matching.engine import Engine
from keyhole.errors import DoesNotFit
from matching_runs import (
    ATTACK,
    ITERATIONS,
    MemoryCheckpointer,
    at,
    check_close,
    poison,
    run,
    starve,
)

pytestmark = pytest.mark.usefixtures("one_thread", "look_often")


@pytest.mark.parametrize("when", [0, 7])
def test_a_victim_whose_loss_breaks_down_is_tried_once_more(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction], when: int
) -> None:
    poison(monkeypatch, 1, at(when))
    found = run(seen)
    check_close([*found[:1], *found[2:]], [*expected[:1], *expected[2:]])
    restarted = found[1]
    assert (restarted.diagnostics["restarts"], restarted.diagnostics["failed"]) == (1, 0)
    assert restarted.diagnostics["iterations"] == ITERATIONS
    assert restarted.images is not None
    assert restarted.images.isfinite().all()
    assert [when for when, _ in restarted.loss_curve] == [5, 10, 15, 20]
    assert [when for when, _ in restarted.frames] == [0, 5, 10, 20]
    assert (restarted.frames[0][1] - expected[1].frames[0][1]).abs().mean() > 0.1


def test_a_victim_whose_loss_breaks_down_again_has_failed(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    poison(monkeypatch, 1)
    found = run(seen)
    check_close([*found[:1], *found[2:]], [*expected[:1], *expected[2:]])
    failed = found[1]
    assert failed.images is None
    assert (failed.diagnostics["restarts"], failed.diagnostics["failed"]) == (1, 1)
    assert failed.diagnostics["images"] == 0


def test_a_trial_that_failed_is_not_taken(monkeypatch: pytest.MonkeyPatch, seen: list[Any]) -> None:
    poison(monkeypatch, 0)
    found = replace(ATTACK, trials=2)(seen[0])
    assert found.images is not None
    assert found.diagnostics["failed"] == 0


@pytest.mark.parametrize("after", [0, 12])
def test_where_memory_runs_out_the_batch_is_halved(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction], after: int
) -> None:
    starve(monkeypatch, 2, after)
    found = run(seen)
    check_close(found, expected)
    assert found[0].notes[0] == "memory ran out with 5 victims at once: went on with 3"
    assert found[0].notes[1] == "memory ran out with 3 victims at once: went on with 2"
    assert len(found[0].notes) == 2


LINUX = (
    "[enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you "
    "tried to allocate 2048000000000 bytes. Error code 12 (Cannot allocate memory)"
)


@pytest.mark.parametrize(
    "error", [RuntimeError(LINUX), RuntimeError("std::bad_alloc"), MemoryError()], ids=repr
)
def test_a_processor_says_otherwise_that_memory_ran_out(
    monkeypatch: pytest.MonkeyPatch,
    seen: list[Any],
    expected: list[Reconstruction],
    error: Exception,
) -> None:
    real = Engine.step

    def starved(self: Engine, state: dict[str, Tensor], matcher: Any) -> None:
        if len(state["victim"]) > 2:
            raise error
        real(self, state, matcher)

    monkeypatch.setattr(Engine, "step", starved)
    found = run(seen, MemoryCheckpointer())
    check_close(found, expected)
    assert any("memory ran out" in note for each in found for note in each.notes)


def test_later_chunks_are_as_small_as_memory_asked_for(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    starve(monkeypatch, 1)
    found = run(seen, MemoryCheckpointer(victims_at_once=2))
    check_close(found, expected)
    assert found[0].notes == ("memory ran out with 2 victims at once: went on with 1",)


def test_a_single_victim_that_does_not_fit_is_an_error_in_one_line(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    starve(monkeypatch, 0)
    with pytest.raises(DoesNotFit, match="memory runs out with a single victim") as raised:
        run(seen)
    assert "\n" not in str(raised.value)


def test_a_batch_that_does_not_even_start_is_halved(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any], expected: list[Reconstruction]
) -> None:
    start = Engine.start

    def starved(self: Engine, victims: Sequence[int], *rest: Any) -> Any:
        if len(victims) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return start(self, victims, *rest)

    monkeypatch.setattr(Engine, "start", starved)
    check_close(run(seen), expected)
