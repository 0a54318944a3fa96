"""Runs that are interrupted go on bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from keyhole.attacks import InvertingGradients, Reconstruction
from keyhole.attacks.matching.engine import Engine
from keyhole.models import build
from matching_runs import (
    ATTACK,
    Clients,
    Interrupted,
    MemoryCheckpointer,
    at,
    check_equal,
    poison,
    run,
    starve,
)

pytestmark = pytest.mark.usefixtures("one_thread", "look_often")


def interrupt_and_resume(
    seen: list[Any], attack: InvertingGradients, until: int, victims_at_once: int | None
) -> list[Reconstruction]:
    """Interrupted at a look and taken up again, until it is through."""
    first = MemoryCheckpointer(victims_at_once=victims_at_once, until=until)
    with pytest.raises(Interrupted):
        run(seen, first, attack)
    return run(seen, MemoryCheckpointer(first.saved, victims_at_once=victims_at_once), attack)


@pytest.mark.parametrize(
    ("victims_at_once", "until"),
    [(None, k) for k in (1, 2, 5)] + [(2, k) for k in (1, 5, 6, 8, 15)],
)
def test_a_run_that_was_interrupted_goes_on_bit_for_bit(
    seen: list[Any], victims_at_once: int | None, until: int
) -> None:
    whole = run(seen, MemoryCheckpointer(victims_at_once=victims_at_once))
    check_equal(interrupt_and_resume(seen, ATTACK, until, victims_at_once), whole)


def misalign(tensor: Tensor) -> Tensor:
    """The same values at an address that is no multiple of 64, as safetensors may hand them out."""
    size = tensor.element_size()
    room = torch.zeros(tensor.numel() * size + 128, dtype=torch.uint8)
    start = -room.data_ptr() % 64 + size
    placed = room[start : start + tensor.numel() * size].view(tensor.dtype).view(tensor.shape)
    return placed.copy_(tensor)


def test_where_saved_memory_lies_does_not_change_a_bit(clients: Clients) -> None:
    attack = InvertingGradients(iterations=60)
    model = build("mlp", classes=10, channels=1, image_size=8)
    seen = [client.observation for client in clients(model, [[3], [14], [25]])]
    first = MemoryCheckpointer(until=3)
    with pytest.raises(Interrupted):
        run(seen, first, attack)
    assert first.saved is not None
    tensors, facts = first.saved
    moved = {name: misalign(tensor) for name, tensor in tensors.items()}
    whole = run(seen, MemoryCheckpointer(), attack)
    check_equal(run(seen, MemoryCheckpointer((moved, facts)), attack), whole)


@pytest.fixture(params=["leaving", "restarted", "failed", "split", "several guesses"])
def eventful(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, expected: list[Reconstruction]
) -> Iterator[InvertingGradients]:
    """An attack on which something happens before it is interrupted."""
    if request.param == "leaving":
        losses = sorted(found.diagnostics["loss"] for found in expected)
        yield replace(ATTACK, iterations=120, stop_below=losses[2])
        return
    if request.param == "restarted":
        poison(monkeypatch, 1, at(7))
    elif request.param == "failed":
        poison(monkeypatch, 1)
    elif request.param == "split":
        starve(monkeypatch, 2)
    yield replace(ATTACK, trials=2) if request.param == "several guesses" else ATTACK


@pytest.mark.parametrize("until", [3, 5])
def test_whatever_happened_before_an_interruption_is_remembered(
    seen: list[Any], eventful: InvertingGradients, until: int
) -> None:
    whole = run(seen, MemoryCheckpointer(), eventful)
    check_equal(interrupt_and_resume(seen, eventful, until, None), whole)


def test_a_run_can_be_interrupted_time_and_again(seen: list[Any]) -> None:
    whole = run(seen, MemoryCheckpointer(victims_at_once=3))
    saved, found, rounds = None, None, 0
    while found is None and rounds < 30:
        rounds += 1
        checkpointer = MemoryCheckpointer(saved, victims_at_once=3, until=4)
        try:
            found = run(seen, checkpointer)
        except Interrupted:
            saved = checkpointer.saved
    assert rounds > 4
    assert found is not None
    check_equal(found, whole)


def test_what_was_finished_is_not_computed_again(
    monkeypatch: pytest.MonkeyPatch, seen: list[Any]
) -> None:
    checkpointer = MemoryCheckpointer()
    whole = run(seen, checkpointer)

    def forbidden(*_: Any) -> None:
        raise AssertionError("nothing is left to do")

    monkeypatch.setattr(Engine, "step", forbidden)
    check_equal(run(seen, MemoryCheckpointer(checkpointer.saved)), whole)


def test_what_is_given_is_not_saved(seen: list[Any]) -> None:
    """Labels are known from the start: they are no part of the attack's state."""
    checkpointer = MemoryCheckpointer(until=3)
    with pytest.raises(Interrupted):
        run(seen, checkpointer)
    assert checkpointer.saved is not None
    tensors, facts = checkpointer.saved
    assert tensors
    assert not [name for name in tensors if "given" in name]
    assert facts["begun"] == 1
