"""Clients whose defense leaves training alone train once; what they send is the same as if not."""

from __future__ import annotations

from typing import Any

import pytest

from keyhole.auditing import AuditResult, audit, trained_clients
from keyhole.auditing.trained_clients import TrainedClients
from keyhole.data import load
from keyhole.defenses import Dropout, Gaussian, Pruning
from keyhole.federation import client

VICTIMS = 2
Patch = pytest.MonkeyPatch


def run() -> AuditResult:
    return audit(
        model="mlp",
        data=load("digits"),
        attacks=["linear"],
        defenses=["none", Gaussian(sigma=0.01), Pruning(ratio=0.5), Dropout()],
        victims=VICTIMS,
    )


@pytest.fixture
def trainings(monkeypatch: Patch) -> list[int]:
    """The seeds of all trainings that take place."""
    seeds: list[int] = []
    train = client.compute_local_update

    def count(*args: Any, **how: Any) -> Any:
        seeds.append(how["seed"])
        return train(*args, **how)

    monkeypatch.setattr(client, "compute_local_update", count)
    monkeypatch.setattr(trained_clients, "compute_local_update", count)
    return seeds


def read(result: AuditResult) -> list[Any]:
    """What was found, without times."""
    found = []
    for finding in result.to_json()["findings"]:
        del finding["seconds"], finding["telemetry"]["client_seconds"]
        found.append(finding)
    return found


def test_each_client_trains_once_per_way_of_training(
    trainings: list[int], monkeypatch: Patch
) -> None:
    shared = read(run())
    assert len(trainings) == 2 * VICTIMS  # without dropout, and with it
    monkeypatch.setattr(TrainedClients, "choose", lambda *_: None)
    assert read(run()) == shared
    assert len(trainings) == 2 * VICTIMS + 7 * VICTIMS  # four defenses and three references


def test_what_has_no_room_trains_again(trainings: list[int], monkeypatch: Patch) -> None:
    shared = read(run())
    del trainings[:]
    monkeypatch.setattr(trained_clients, "BYTES_KEPT", 0)
    assert read(run()) == shared
    assert len(trainings) == 7 * VICTIMS


def test_a_single_undefended_client_is_not_kept(monkeypatch: Patch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("nothing else trains as this client does")

    monkeypatch.setattr(TrainedClients, "choose", refuse)
    audit(model="mlp", data=load("digits"), attacks=["linear"], defenses=["none"], victims=1)
