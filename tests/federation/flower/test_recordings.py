"""What a curious strategy records under Flower's own strategies, without its processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Message
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx

from flower_federations import (
    CLIENTS,
    Grain,
    Run,
    Signs,
    app_of,
    as_it_travels,
    close,
    plan_of,
    recorded,
    same,
)
from keyhole.defenses import (
    ClientSide,
    Defense,
    Dropout,
    Gaussian,
    NoDefense,
    Pruning,
)
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import (
    Capture,
    Federation,
    build_federation,
    client_generator,
    train_client,
)
from keyhole.federation.flower import (
    as_mod,
    curious,
)
from keyhole.update import Update


@pytest.mark.parametrize(
    ("model", "defense"),
    [
        ("mlp", "none"),
        ("lenet", "none"),
        ("mlp", "gaussian(sigma=0.01)"),
        ("lenet", "gaussian(sigma=0.01)"),
        ("vit-small", "mjp(gamma=0.5)"),
        ("lenet", "tip(epsilon=20)"),
        ("mlp", "dp"),
        ("lenet", "agp"),
    ],
)
def test_flower_trains_as_keyhole_does(run: Run, model: str, defense: str) -> None:
    plan = plan_of(model, defense=defense)
    alone = build_federation(plan, data_dir=None)
    start = build_federation(plan, data_dir=None)
    found = run(app_of(start, as_mod(start.defense, seed=plan.seed)), start.model, last=3)
    for _ in alone.run_rounds(1, 3):
        pass
    assert close(found, dict(alone.model.state_dict()), 1e-5)
    before = build_federation(plan, data_dir=None).model.state_dict()
    assert not close(found, dict(before), 1e-2)


def test_no_defense_changes_no_bit(run: Run, tmp_path: Path) -> None:
    federation, other = (build_federation(plan_of(lr=0.5), data_dir=None) for _ in range(2))
    bare = run(app_of(federation), federation.model)
    first = recorded(tmp_path)
    found = run(app_of(other, as_mod(NoDefense(), seed=7)), other.model)
    assert close(found, bare, 1e-6)  # clients are averaged in another order
    assert all(same(first[client], change) for client, change in recorded(tmp_path).items())


@pytest.mark.parametrize("defense", [Gaussian(sigma=0.01, clip=0.5), Pruning(ratio=0.9)])
def test_a_recording_differs_by_what_the_defense_does_to_updates(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    federation = build_federation(plan_of(), data_dir=None)
    start = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
    run(app_of(federation), federation.model)
    plain = recorded(tmp_path)
    federation.model.load_state_dict(start)
    run(app_of(federation, as_mod(defense, seed=7)), federation.model)
    for client, seen in recorded(tmp_path).items():
        draw = client_generator(7, client, 1)
        torch.randint(2**62, (), generator=draw)  # the training's own seed comes first
        update = Update({name: plain[client][name] for name in start})
        expected = defense.on_update(update, ClientSide(draw))
        assert same(seen, as_it_travels(start, dict(expected.change)))
        assert not close(seen, plain[client], 1e-4)


@pytest.mark.parametrize("defense", [Dropout(p=0.5), Grain(), Signs()], ids=lambda d: d.name)
def test_a_recording_differs_by_what_the_defense_does_in_training(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    plan = plan_of(lr=0.01)
    federation, untouched = (build_federation(plan, data_dir=None) for _ in range(2))
    run(app_of(federation, as_mod(defense, seed=7)), federation.model)
    for client, seen in recorded(tmp_path).items():
        member = untouched.make_client(1, client)
        expected, plain = (
            train_client(
                untouched.model,
                member.images,
                member.labels,
                data=untouched.data,
                defense=d,
                generator=client_generator(7, client, 1),
                training=untouched.training,
            )[0]
            for d in (defense, NoDefense())
        )
        start = dict(untouched.model.state_dict())
        assert same(seen, as_it_travels(start, dict(expected.change)))
        assert not close(seen, dict(plain.change), 1e-4)


def with_statistics(federation: Federation) -> Federation:
    """The federation with a model that counts its batches, an integer."""
    federation.model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    return federation


def test_integers_survive(run: Run, tmp_path: Path) -> None:
    federation = with_statistics(build_federation(plan_of(steps=3), data_dir=None))
    app = app_of(federation, as_mod(Gaussian(sigma=1.0), seed=7))
    found = run(app, federation.model, last=2)
    for number in (1, 2):
        for change in recorded(tmp_path, number).values():
            counted = change["1.num_batches_tracked"]
            assert (int(counted), counted.dtype) == (3, torch.int64)
            assert float(change["4.weight"].std()) == pytest.approx(1, abs=0.1)
    assert int(found["1.num_batches_tracked"]) == 6


def test_a_client_that_fails_is_noted(run: Run, tmp_path: Path) -> None:
    federation = build_federation(plan_of(), data_dir=None)

    def stumbling(message: Message, context: Any, call_next: Any) -> Message:
        if context.node_config["partition-id"] == 1:
            raise RuntimeError("out of battery")
        return call_next(message, context)

    found = run(app_of(federation, stumbling), federation.model)
    (seen,) = Capture.open(tmp_path).rounds
    assert set(recorded(tmp_path, lost=1)) == {0, 2}
    assert seen.lost.keys() == {"101"}
    assert "out of battery" in seen.lost["101"]
    assert found.keys() == federation.model.state_dict().keys()


def test_a_full_disk_does_not_stop_the_training(run: Run, tmp_path: Path) -> None:
    federation, other = (build_federation(plan_of(), data_dir=None) for _ in range(2))
    unlimited = run(app_of(federation), federation.model, last=3)
    for folder in tmp_path.glob("round-*"):
        shutil.rmtree(folder)
    a_round = 4 * (CLIENTS + 1) * sum(p.numel() for p in other.model.parameters()) / 1e9
    limited = run(app_of(other), other.model, last=3, limit_gb=1.5 * a_round)
    capture = Capture.open(tmp_path)
    assert [seen.number for seen in capture.rounds] == [1]
    assert [problem.partition(" was")[0] for problem in capture.problems] == ["round 2", "round 3"]
    assert close(limited, unlimited, 1e-5)


@pytest.mark.parametrize("thing", [object(), FedAvg(), ClientApp, "FedAvg"])
def test_only_strategies_can_be_curious(thing: Any) -> None:
    with pytest.raises(DoesNotFit, match="strategy"):
        curious(thing)


def test_a_curious_strategy_records_how_images_are_normalised(tmp_path: Path) -> None:
    curious(FedAvg)(capture=tmp_path, mean=(0.49, 0.48, 0.45), std=0.25)
    about = json.loads((tmp_path / "capture.json").read_text())["about"]
    assert (about["mean"], about["std"]) == ("0.49,0.48,0.45", "0.25")
    with pytest.raises(BadValue, match="std: give one number above 0"):
        curious(FedAvg)(capture=tmp_path / "other", mean=0.5, std=0)


def test_other_strategies_can_be_curious(
    run: Run, grid_of: Callable[..., Any], tmp_path: Path
) -> None:
    federation, other = (build_federation(plan_of(), data_dir=None) for _ in range(2))
    found = run(app_of(federation), federation.model, last=2, kind=FedAdam, eta=0.01)
    start = ArrayRecord(other.model.state_dict())
    blind = FedAdam(fraction_evaluate=0.0, min_train_nodes=CLIENTS, eta=0.01)
    result = blind.start(grid_of(app_of(other), CLIENTS), start, num_rounds=2)
    assert close(found, dict(result.arrays.to_torch_state_dict()), 1e-5)
    first, second = Capture.open(tmp_path).rounds
    assert same(first.read_weights(), dict(start.to_torch_state_dict()))
    assert not close(second.read_weights(), first.read_weights(), 1e-3)


def test_what_the_strategy_told_its_clients_is_noted(run: Run, tmp_path: Path) -> None:
    federation = build_federation(plan_of(), data_dir=None)
    run(app_of(federation), federation.model, kind=FedProx, proximal_mu=0.5, about={"model": "mlp"})
    capture = Capture.open(tmp_path)
    assert capture.rounds[0].config == {"proximal-mu": 0.5, "server-round": 1}
    assert capture.about == {"model": "mlp"}
    assert [client["examples"] for client in capture.rounds[0].clients] == [12] * CLIENTS
