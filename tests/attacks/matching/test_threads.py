"""Victims shared out among threads: the same as in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from keyhole.attacks import DropoutInversion, InvertingGradients, Reconstruction
from keyhole.attacks.matching.engine import Engine
from keyhole.defenses import Dropout
from keyhole.models import build

Clients = Callable[..., list[Any]]


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of torch's threads for a test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def run_attack(clients: Clients, name: str, attack: Any) -> list[Reconstruction]:
    model = build(name, classes=10, channels=1, image_size=8)
    if name == "vit-small":
        model.blocks = model.blocks[:1]
    victims = clients(model, [[3], [4], [5]], Dropout(p=0.25))
    return list(attack.on_many([victim.observation for victim in victims]))


@pytest.mark.parametrize("name", ["mlp", "lenet", "vit-small"])
def test_shared_out_victims_end_where_they_end_together(
    clients: Clients, threads: Callable[[int], None], name: str
) -> None:
    found = []
    for count in (1, 2):
        threads(count)
        found.append(run_attack(clients, name, DropoutInversion(iterations=3)))
    for alone, shared in zip(*found, strict=True):
        assert shared.diagnostics["iterations"] == 3
        assert shared.diagnostics["loss"] == pytest.approx(alone.diagnostics["loss"], rel=1e-3)


def test_every_thread_has_victims_of_its_own(
    clients: Clients, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    step = Engine.step

    def noted(self: Engine, state: Any, matcher: Any) -> None:
        sizes.append((len(state["victim"]), torch.get_num_threads()))
        step(self, state, matcher)

    monkeypatch.setattr(Engine, "step", noted)
    threads(2)
    run_attack(clients, "mlp", InvertingGradients(iterations=4))
    assert sorted(sizes) == [(1, 1)] * 4 + [(2, 1)] * 4
    assert torch.get_num_threads() == 2


def test_an_error_in_one_thread_is_the_attacks_error(
    clients: Clients, threads: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Engine, state: Any, matcher: Any) -> None:
        if len(state["victim"]) == 1:
            raise ZeroDivisionError("one of them")

    monkeypatch.setattr(Engine, "step", fails)
    threads(2)
    with pytest.raises(ZeroDivisionError, match="one of them"):
        run_attack(clients, "mlp", InvertingGradients(iterations=4))
    assert torch.get_num_threads() == 2


def test_a_model_that_is_not_factored_runs_in_one_batch(
    clients: Clients, threads: Callable[[int], None]
) -> None:
    threads(2)
    found = run_attack(clients, "mlp", InvertingGradients(iterations=2, backend="vmap"))
    assert [f.diagnostics["iterations"] for f in found] == [2, 2, 2]
