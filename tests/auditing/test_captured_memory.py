"""Audits of captured folders hold few updates and few models, however many there are."""

from __future__ import annotations

import importlib
import weakref
from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing import Plan, Stage, captured_clients, run_plan
from keyhole.federation import TrainingPlan, train
from keyhole.threat import Server

RUN = importlib.import_module("keyhole.auditing.run")


def alive(references: list[weakref.ref[Any]]) -> int:
    return sum(each() is not None for each in references)


def test_updates_are_read_when_they_are_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = TrainingPlan(clients=10, images=1, steps=1, batch_size=1, rounds=3, together="no")
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    updates: list[weakref.ref[Any]] = []
    servers: list[weakref.ref[Any]] = []
    most = {"updates": 0, "servers": 0}
    read, begin = captured_clients.read_update, Server.__init__

    def counted_read(*values: Any) -> Any:
        update = read(*values)
        updates.append(weakref.ref(next(iter(update.change.values()))))
        most["updates"] = max(most["updates"], alive(updates))
        return update

    def counted_begin(server: Server, *values: Any) -> None:
        begin(server, *values)
        servers.append(weakref.ref(server))
        most["servers"] = max(most["servers"], alive(servers))

    monkeypatch.setattr(captured_clients, "read_update", counted_read)
    monkeypatch.setattr(Server, "__init__", counted_begin)
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", 2)
    options: dict[str, Any] = {"captured": tmp_path / "seen", "rounds": "all", "victims": 10}
    result = run_plan(Plan(stage=(Stage(data="digits", attacks=("linear",), **options),)))
    assert sum(finding.victims for finding in result.findings) == 30
    own, earlier, membership = 30, 10 * (0 + 1 + 2), 30
    assert len(updates) == 2 * (own + earlier + membership)  # once to see whether each can be used
    assert most["updates"] <= 10 + 2  # membership compares all clients of one round
    assert most["servers"] <= 2
