"""The example app in Flower's own processes: a simulation, and a deployment on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from flower_processes import Flower, settings
from keyhole.federation import Capture, TrainingPlan, average_updates, build_federation

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "flower"


def check_capture(folder: Path, plan: TrainingPlan) -> None:
    """Whole rounds, and in the first one what Keyhole's own clients would have sent."""
    capture = Capture.open(folder)
    federation = build_federation(plan, data_dir=None)
    assert not capture.problems
    assert capture.about.items() >= {"model": plan.model, "data": plan.data}.items()
    assert capture.truth is not None
    assert capture.truth["clients"] == {str(i): s for i, s in enumerate(federation.shares)}
    assert [seen.number for seen in capture.rounds] == list(range(1, plan.rounds + 1))
    for seen in capture.rounds:
        assert not seen.lost
        assert sorted(c["metrics"]["partition-id"] for c in seen.clients) == [*range(plan.clients)]
        assert {c["examples"] for c in seen.clients} == {plan.images}
        assert seen.config["defense"] == plan.defense
        assert seen.config["lr"] == plan.lr
    first = capture.rounds[0]
    expected = federation.collect_updates(1, range(plan.clients))
    for client in first.clients:
        change, share = first.read_change(client), expected[client["metrics"]["partition-id"]]
        for name, tensor in share.update.change.items():
            assert torch.allclose(change[name], tensor, rtol=0, atol=2e-6), name


def plan_of(clients: int, rounds: int = 1, defense: str = "none") -> TrainingPlan:
    """The example's own settings beside these."""
    own: dict[str, Any] = {"images": 1, "steps": 1, "lr": 0.01, "momentum": 0.0}
    return TrainingPlan(
        model="vit-small", clients=clients, rounds=rounds, defense=defense, together="no", **own
    )


def test_a_simulation_is_captured(flower: Flower, tmp_path: Path) -> None:
    plan = plan_of(3, rounds=2, defense="gaussian(sigma=0.001)")
    captured = tmp_path / "captured"
    chosen = settings(clients=3, num_server_rounds=2, defense=plan.defense, capture=str(captured))
    crowd = "num-supernodes=3 client-resources-num-cpus=1"
    flower.run(EXAMPLE, "local", "--run-config", chosen, "--federation-config", crowd)
    check_capture(captured, plan)


def test_a_deployment_is_captured(flower: Flower, tmp_path: Path) -> None:
    plan = plan_of(2)
    flower.deploy(plan.clients)
    captured = tmp_path / "captured"
    flower.run(
        EXAMPLE, "here", "--run-config", settings(num_server_rounds=1, capture=str(captured))
    )
    check_capture(captured, plan)


def test_under_secure_aggregation_only_the_mean_is_seen(flower: Flower, tmp_path: Path) -> None:
    captured = tmp_path / "captured"
    script = str(EXAMPLE / "secagg.py")
    flower.call(sys.executable, script, "--capture", str(captured), timeout=400)
    (seen,) = Capture.open(captured).rounds
    (client,) = seen.clients
    assert (client["node"], client["examples"]) == ("aggregate", 4)
    assert client["metrics"]["distinct-updates"] == 1
    federation = build_federation(plan_of(4), data_dir=None)
    updates = [share.update for share in federation.collect_updates(1, range(4))]
    start, change = seen.read_weights(), seen.read_change(client)
    mean = average_updates(start, updates)
    assert all(torch.allclose(start[n] + change[n], mean[n], rtol=0, atol=1e-4) for n in mean)
    for update in updates:
        apart = (change["head.weight"] - update.change["head.weight"]).norm()
        assert apart > 0.5 * update.change["head.weight"].norm()
