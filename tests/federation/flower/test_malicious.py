"""Strategies of a lying server: what clients get, what is captured, how the training goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg

from captures import audited
from flower_federations import app_of, close, plan_of, same
from keyhole.attacks import (
    Attack,
    Imprint,
    LinearLeak,
    Loki,
    SingleOut,
    TrapWeights,
)
from keyhole.auditing import malicious
from keyhole.errors import BadValue, DoesNotFit, RunFolderError
from keyhole.federation import Capture, Federation, TrainingPlan, build_federation
from keyhole.federation.run import describe_run, round_config
from keyhole.threat import PublicKnowledge

CLIENTS, IMAGES = 3, 2


def small_plan(model: str = "mlp", **settings: Any) -> TrainingPlan:
    return plan_of(model, **{"images": IMAGES, "steps": 1, "batch_size": 8, "lr": 0.1} | settings)


def public_of(federation: Federation, clients: int = 1) -> PublicKnowledge:
    data, held_out = federation.test
    images = data.normalise(data.images(held_out[:128]))
    return PublicKnowledge(data.shape, len(data.classes), images, IMAGES, 1, clients)


@pytest.fixture
def lie(grid_of: Callable[..., Any], tmp_path: Path) -> Callable[..., dict[str, Tensor]]:
    """Trains under a lying server; returns the global weights."""

    def rounds(
        plan: TrainingPlan,
        attack: Attack,
        *,
        clients: int = 1,
        adds_layer: bool = False,
        last: int = 1,
        kind: type = FedAvg,
        app: ClientApp | None = None,
        **options: Any,
    ) -> dict[str, Tensor]:
        federation = build_federation(plan, data_dir=None)
        members = build_federation(plan, data_dir=None)
        public = public_of(federation, clients)
        if adds_layer:
            members.model = attack.alter(members.model, public)
        strategy = malicious(kind)(
            attack=attack,
            model=federation.model,
            public=public,
            capture=tmp_path / "seen",
            about=describe_run(plan, federation.data),
            i_own_these_clients=True,
            fraction_evaluate=0.0,
            min_available_nodes=CLIENTS,
            min_train_nodes=CLIENTS,
            **options,
        )
        owners = {str(client): share for client, share in enumerate(federation.shares)}
        strategy.capture_writer.write_truth(plan.data, owners)
        result = strategy.start(
            grid_of(app or app_of(members), CLIENTS),
            ArrayRecord(federation.model.state_dict()),
            num_rounds=last,
            train_config=ConfigRecord(round_config(plan)),
        )
        return dict(result.arrays.to_torch_state_dict())

    return rounds


def strategy_options(**changes: Any) -> dict[str, Any]:
    federation = build_federation(small_plan(), data_dir=None)
    usual = {"model": federation.model, "public": public_of(federation), "attack": TrapWeights()}
    return usual | changes


def test_nothing_starts_before_the_user_says_that_the_clients_are_theirs(tmp_path: Path) -> None:
    for said in ({}, {"i_own_these_clients": False}, {"i_own_these_clients": "yes"}):
        with pytest.raises(BadValue, match="your own deployment") as refusal:
            malicious(FedAvg)(capture=tmp_path / "seen", **strategy_options(), **said)
        assert "i_own_these_clients=True" in str(refusal.value)
        assert "\n" not in str(refusal.value)
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"attack": LinearLeak()}, "changes no model: use curious"),
        ({"attack": SingleOut(target=1)}, "has no client 1"),
        ({"model": torch.nn.Conv2d(1, 10, 8)}, "first layer"),
    ],
    ids=["honest", "target", "model"],
)
def test_what_cannot_be_altered_is_refused_before_the_first_round(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    with pytest.raises(DoesNotFit, match=why):
        malicious(FedAvg)(
            capture=tmp_path / "seen", i_own_these_clients=True, **strategy_options(**changes)
        )
    assert not (tmp_path / "seen").exists()


@pytest.mark.parametrize("thing", [object(), FedAvg(), ClientApp, "FedAvg"])
def test_only_strategies_can_be_malicious(thing: Any) -> None:
    with pytest.raises(DoesNotFit, match="strategy"):
        malicious(thing)


def test_clients_get_the_altered_model_and_the_honest_one_learns(
    lie: Callable[..., dict[str, Tensor]], tmp_path: Path
) -> None:
    plan = small_plan()
    end = lie(plan, TrapWeights(), last=2)
    capture = Capture.open(tmp_path / "seen")
    assert capture.about["attack"] == str(TrapWeights())
    assert capture.about["altered_model"] == TrapWeights.altered_model
    federation = build_federation(plan, data_dir=None)
    honest = dict(federation.model.state_dict())
    attack, public = TrapWeights(), public_of(federation)
    for seen in capture.rounds:
        federation.model.load_state_dict(honest)
        assert close(
            seen.read_weights(), dict(attack.alter(federation.model, public).state_dict()), 1e-5
        )
        changes = [seen.read_change(client) for client in seen.clients]
        assert len(changes) == CLIENTS
        honest = {n: t + torch.stack([c[n] for c in changes]).mean(0) for n, t in honest.items()}
    assert close(end, honest, 1e-5)


def test_other_strategies_learn_as_if_nothing_was_altered(
    lie: Callable[..., dict[str, Tensor]], tmp_path: Path
) -> None:
    end = lie(small_plan(), TrapWeights(), kind=FedAdam, eta=0.01)
    start = dict(build_federation(small_plan(), data_dir=None).model.state_dict())
    assert max(float((end[n] - start[n]).abs().max()) for n in start) < 0.05  # Adam's step
    assert not same(end, start)


@pytest.mark.parametrize(
    ("model", "attack", "adds_layer"),
    [
        ("mlp", TrapWeights(), False),
        ("mlp", Imprint(bins=64), True),
        ("lenet", Imprint(bins=64), True),
    ],
    ids=["trap-weights", "imprint", "imprint-lenet"],
)
def test_an_audit_reads_what_a_lying_server_captured(
    lie: Callable[..., dict[str, Tensor]],
    tmp_path: Path,
    model: str,
    attack: Attack,
    adds_layer: bool,
) -> None:
    end = lie(small_plan(model), attack, adds_layer=adds_layer)
    assert not any(name.startswith("imprint") for name in end)
    result = audited(tmp_path / "seen", model=model, attacks=(attack.name, "labels"))
    finding, other = result.findings
    assert finding.knowledge["server"] == "malicious"
    assert other.knowledge["server"] == "malicious"  # whatever reads it, the model was altered
    assert sum(finding.metrics["read"].per_image) >= CLIENTS * IMAGES - 1
    assert any("altered the model" in note for note in result.notes)


def test_a_secure_sum_is_taken_apart_by_client(
    lie: Callable[..., dict[str, Tensor]], tmp_path: Path
) -> None:
    lie(small_plan(), Loki(bins=64), clients=CLIENTS, adds_layer=True)
    (seen,) = Capture.open(tmp_path / "seen").rounds
    (client,) = seen.clients
    assert (client["node"], client["clients"], client["examples"]) == ("aggregate", 3, 6)
    assert client["members"] == "0,1,2"
    (finding,) = audited(tmp_path / "seen", model="mlp", attacks=("loki",)).findings
    assert finding.metrics["read"].per_image == pytest.approx([1.0] * 6)
    assert finding.metrics["client"].per_image == pytest.approx([1.0] * 6)


@pytest.mark.parametrize("target", [0, 2])
def test_one_client_of_a_secure_sum_is_singled_out(
    lie: Callable[..., dict[str, Tensor]], tmp_path: Path, target: int
) -> None:
    lie(small_plan(images=1), SingleOut(target=target), clients=CLIENTS)
    (finding,) = audited(tmp_path / "seen", model="mlp", attacks=("single-out",)).findings
    expected = tuple(float(client == target) for client in range(CLIENTS))
    assert finding.metrics["read"].per_image == expected


def test_a_sum_of_another_number_of_clients_is_refused(
    lie: Callable[..., dict[str, Tensor]],
) -> None:
    with pytest.raises(DoesNotFit, match="3 clients take part, but the attack is laid for a sum"):
        lie(small_plan(), Loki(), clients=2, adds_layer=True)


def test_a_sum_that_lacks_a_client_is_not_captured(
    lie: Callable[..., dict[str, Tensor]], tmp_path: Path
) -> None:
    plan = small_plan()

    def stumble(message: Any, context: Any, call_next: Any) -> Any:
        if context.node_config["partition-id"] == 1:
            raise RuntimeError("out of battery")
        return call_next(message, context)

    app = app_of(build_federation(plan, data_dir=None), stumble)
    end = lie(plan, TrapWeights(), clients=CLIENTS, app=app)
    start = dict(build_federation(plan, data_dir=None).model.state_dict())
    assert end.keys() == start.keys()
    assert not close(end, start, 1e-5)
    with pytest.raises(RunFolderError, match="no captured round"):
        Capture.open(tmp_path / "seen")
