from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keyhole.attacks import DeepLeakage, Gifd, InvertingGradients, Matching
from keyhole.auditing import time_budget
from keyhole.auditing.time_budget import TimedCheckpointer, attempt, limit_iterations
from keyhole.data import load
from keyhole.models import build


@pytest.mark.parametrize(
    ("attack", "iterations", "expected"),
    [
        (InvertingGradients(), 300, {"iterations": 300, "patience": 10}),
        (InvertingGradients(), 9000, {"iterations": 3000, "patience": 100}),
        (InvertingGradients(), 3, {"iterations": 3, "patience": 1}),
        (Gifd(), 400, {"iterations": 100}),
        (Gifd(), 2, {"iterations": 1}),
        (Gifd(), 9000, {"iterations": 250}),
        (DeepLeakage(), 40, {"iterations": 40}),
    ],
)
def test_schedules_are_scaled_to_the_iterations_that_fit(
    attack: Matching, iterations: int, expected: dict[str, int]
) -> None:
    found = limit_iterations(attack, iterations)
    assert {name: getattr(found, name) for name in expected} == expected


def test_iterations_are_timed_from_the_first_look_to_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = iter([0.0, 1.0, 3.0, 5.0])
    monkeypatch.setattr(time_budget.time, "monotonic", lambda: next(now))
    checkpointer = TimedCheckpointer(10)
    assert checkpointer.seconds_per_iteration == float("inf")
    checkpointer.watch(0, 6, "")
    checkpointer.watch(4, 6, "")
    assert checkpointer.seconds_per_iteration == 0.5
    assert checkpointer.seconds_left == 5


@pytest.mark.parametrize(("seconds", "enough"), [(0.0, False), (60.0, True)])
def test_an_attack_that_had_no_time_says_nothing(
    observe: Callable[..., Any], seconds: float, enough: bool
) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    victim = observe(model, load("digits"), [5]).telling("labels")
    made = attempt(InvertingGradients(iterations=120), victim.observation, seconds)
    assert made.enough is enough
    assert (made.iterations >= 100) is enough
    assert made.found.images is not None
