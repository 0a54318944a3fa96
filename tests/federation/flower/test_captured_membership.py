"""Membership from what a curious strategy of Flower captured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from flower_federations import Run, app_of, plan_of
from keyhole.auditing.captured_membership import infer_captured_membership
from keyhole.federation import build_federation


def test_updates_of_flowers_clients_tell_who_was_in_them(run: Run, tmp_path: Path) -> None:
    plan = plan_of(images=25, batch_size=10, epochs=3, lr=0.05)
    federation = build_federation(plan, data_dir=None)
    run(app_of(federation), federation.model, last=4)
    owners = {str(n): list(share) for n, share in enumerate(federation.shares)}
    (tmp_path / "truth.json").write_text(json.dumps({"clients": owners}))
    found = infer_captured_membership(tmp_path, model="mlp", data="digits")
    areas = {each.attack: each.auc for each in found.attacks}
    assert found.rounds == (1, 2, 3, 4)
    assert areas["fedmia"] > areas["loss"]
