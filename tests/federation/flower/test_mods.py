"""Mods that defend clients under Flower's own strategies, without its processes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from flower_federations import (
    CLIENTS,
    Grain,
    Run,
    Signs,
    answer,
    app_of,
    as_it_travels,
    close,
    plan_of,
    recorded,
    same,
)
from keyhole.defenses import (
    Agp,
    ClientSide,
    Defense,
    Dp,
    Dropout,
    Gaussian,
    Pruning,
    Tip,
)
from keyhole.federation import (
    Capture,
    Federation,
    build_federation,
    client_generator,
)
from keyhole.federation.flower import (
    as_mod,
    before_upload,
    protect_images,
    protect_model,
    tell_defense,
)
from keyhole.update import Update


@pytest.mark.parametrize(
    ("defense", "missing"),
    [
        (Grain(), "protect_images(images)"),
        (Dropout(), "protect_model(model)"),
        (Signs(), "protect_step(model, inputs, labels)"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_undefended_update_never_leaves(
    run: Run, tmp_path: Path, defense: Defense, missing: str
) -> None:
    app = ClientApp(mods=[as_mod(defense)])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        if "images" not in missing:
            protect_images(torch.rand(1, 1, 8, 8))
        if "model" not in missing.partition("(")[0]:
            protect_model(nn.Linear(1, 1))
        return answer(message, message.content["arrays"].to_torch_state_dict(), 1, 0)

    assert run(app, build_federation(plan_of(), data_dir=None).model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert seen.clients == ()
    assert len(seen.lost) == CLIENTS
    assert all(missing in reason for reason in seen.lost.values())


def own_loop(federation: Federation, told: Callable[..., None], *mods: Any) -> ClientApp:
    """Clients with a loop of their own: two steps of SGD on all images, in place."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        model = copy.deepcopy(federation.model)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        member = federation.make_client(1, client)
        told(model, member.images, member.labels)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            optimiser.zero_grad()
            inputs = federation.data.normalise(member.images)
            nn.functional.cross_entropy(model(inputs), member.labels).backward()
            optimiser.step()
        return answer(message, model.state_dict(), 12, client)

    return app


@pytest.mark.parametrize("defense", [Tip(), Dp(), Agp()], ids=lambda d: d.name)
def test_a_loop_of_one_s_own_tells_the_defense_of_itself(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    federation = build_federation(plan_of("lenet"), data_dir=None)
    start = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
    normalise = federation.data.normalise

    def told(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        tell_defense(model, images, labels, steps=2, lr=0.05, batch_size=12, normalise=normalise)

    assert told(nn.Linear(1, 1), torch.rand(1), torch.zeros(1)) is None  # no mod, no harm
    run(own_loop(federation, told), federation.model)
    plain = recorded(tmp_path)
    run(own_loop(federation, told, as_mod(defense, seed=7)), federation.model)
    for client, seen in recorded(tmp_path).items():
        member = federation.make_client(1, client)
        side = ClientSide(
            client_generator(7, client, 1),
            federation.model,  # the global one, though the client trained in place
            member.images,
            member.labels,
            normalise=normalise,
        )
        change = {name: plain[client][name] for name in start}
        update = Update(change, steps=2, lr=0.05, batch_size=12)
        expected = defense.on_update(update, side)
        assert close(seen, as_it_travels(start, dict(expected.change)), 1e-6)
        strength = side.telemetry["beta" if defense.name == "tip" else "sigma"]
        assert 0 < float(strength) < 0.25  # not that of a bare gradient, which is 1 and more
        assert not close(seen, plain[client], 0.01)


@pytest.mark.parametrize("defense", [Tip(beta=0.1), Dp(sigma=0.1), Agp()], ids=lambda d: d.name)
def test_a_defense_that_was_told_nothing_sends_nothing(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    federation = build_federation(plan_of("lenet"), data_dir=None)
    app = own_loop(federation, lambda *_: None, as_mod(defense))
    assert run(app, federation.model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert seen.clients == ()
    call = "tell_defense(model, images, labels, steps=..., lr=..., batch_size=...)"
    assert all(call in reason and defense.name in reason for reason in seen.lost.values())


def test_a_defense_that_was_told_of_another_model_sends_nothing(run: Run, tmp_path: Path) -> None:
    federation = build_federation(plan_of("lenet"), data_dir=None)

    def told(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        tell_defense(nn.Linear(1, 1), images, labels, steps=2, lr=0.05, batch_size=12)

    assert run(own_loop(federation, told, as_mod(Dp())), federation.model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert all("no tensor of the client's model" in reason for reason in seen.lost.values())


def test_memory_outlives_a_round(grid_of: Callable[..., Any], tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Louder(Defense):
        """Sends twice the update in the second round, and so on."""

        name: ClassVar[str] = "louder"

        def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
            assert side is not None
            side.memory["rounds"] = side.memory.get("rounds", 0) + 1
            return update.map(lambda _, tensor: tensor * side.memory["rounds"])

    federation, alone = (build_federation(plan_of(lr=0.01), data_dir=None) for _ in range(2))
    grid = grid_of(app_of(federation, as_mod(Louder(), seed=7)), CLIENTS)
    start = ArrayRecord(federation.model.state_dict())
    found = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS).start(grid, start, num_rounds=3)
    alone.defense = Louder()
    for _ in alone.run_rounds(1, 3):
        pass
    assert close(dict(found.arrays.to_torch_state_dict()), dict(alone.model.state_dict()), 1e-5)
    kept = [context.state.config_records["keyhole-memory"] for context in grid.contexts.values()]
    assert [record["json"] for record in kept] == ['{"rounds": 3}'] * CLIENTS


def test_an_outer_mod_does_not_forget_what_an_inner_one_remembers(
    grid_of: Callable[..., Any],
) -> None:
    """The budget that DP-SGD has spent is that of all rounds, whatever mods are around it."""

    @dataclass(frozen=True)
    class Counting(Defense):
        name: ClassVar[str] = "counting"
        counter: str = "rounds"

        def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
            assert side is not None
            side.memory.setdefault(self.counter, []).append(1)
            return update

    federation = build_federation(plan_of(lr=0.01), data_dir=None)
    mods = [as_mod(Gaussian()), as_mod(Counting("outer")), as_mod(Counting("inner"))]
    grid = grid_of(app_of(federation, *mods), CLIENTS)
    start = ArrayRecord(federation.model.state_dict())
    FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS).start(grid, start, num_rounds=3)
    for context in grid.contexts.values():
        kept = json.loads(str(context.state.config_records["keyhole-memory"]["json"]))
        assert kept == {"inner": [1, 1, 1], "outer": [1, 1, 1]}


def test_evaluation_passes_untouched_where_that_is_allowed(grid_of: Callable[..., Any]) -> None:
    federation = build_federation(plan_of(), data_dir=None)
    allowed = as_mod(Gaussian(sigma=1.0), seed=7, allow_undefended=("evaluate",))
    grid = grid_of(app_of(federation, before_upload(lambda *_: "no"), allowed), CLIENTS)
    arrays = ArrayRecord(federation.model.state_dict())
    asked = FedAvg().configure_evaluate(1, arrays, ConfigRecord(), grid)
    for reply in grid.send_and_receive(asked):
        back = reply.content["arrays"].to_torch_state_dict()
        assert same(dict(back), dict(arrays.to_torch_state_dict()))
    result = FedAvg(fraction_train=0.0).start(grid, arrays, num_rounds=1)
    assert result.evaluate_metrics_clientapp[1]["partition-id"] > 0


def asked_without_weights(grid: Any) -> Message:
    (reply,) = grid.send_and_receive([Message(RecordDict({}), 100, "train")])
    assert isinstance(reply, Message)
    return reply


@pytest.mark.parametrize("mod", [as_mod(Gaussian()), before_upload(lambda *_: None)])
def test_weights_that_nobody_can_judge_never_leave(grid_of: Callable[..., Any], mod: Any) -> None:
    """A client that has its model from elsewhere, and one that only tells figures."""
    loose, quiet = ClientApp(mods=[mod]), ClientApp(mods=[mod])

    @loose.train()
    def train(message: Message, context: Any) -> Message:
        return answer(message, {"w": torch.ones(2)}, 1, 0)

    @quiet.train()
    def tell(message: Message, context: Any) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"images": 3})}), reply_to=message)

    assert "send the global weights" in asked_without_weights(grid_of(loose, 1)).error.reason
    told = asked_without_weights(grid_of(quiet, 1))
    assert told.content["metrics"]["images"] == 3


def test_a_client_that_writes_into_the_message_is_defended(grid_of: Callable[..., Any]) -> None:
    app = ClientApp(mods=[as_mod(Gaussian(sigma=1.0))])

    @app.train()
    def train(message: Message, context: Any) -> Message:
        message.content["arrays"] = ArrayRecord({"w": torch.full((1000,), 5.0)})
        return Message(message.content, reply_to=message)

    content = RecordDict({"arrays": ArrayRecord({"w": torch.zeros(1000)})})
    (reply,) = grid_of(app, 1).send_and_receive([Message(content, 100, "train")])
    sent = reply.content["arrays"].to_torch_state_dict()["w"]
    assert float(sent.std()) == pytest.approx(1.0, abs=0.1)
    assert float(sent.mean()) == pytest.approx(5.0, abs=0.15)


def test_an_update_can_be_held_back_before_the_upload(run: Run, tmp_path: Path) -> None:
    federation = build_federation(plan_of(), data_dir=None)
    start = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
    shown: dict[int, Update] = {}

    def check(update: Update, weights: dict[str, Tensor], context: Any) -> str | None:
        assert same(weights, start)
        client = context.node_config["partition-id"]
        shown[client] = update
        return "too much can be seen" if client == 2 else None

    run(app_of(federation, before_upload(check), as_mod(Pruning(ratio=0.5))), federation.model)
    (seen,) = Capture.open(tmp_path).rounds
    changes = recorded(tmp_path, lost=1)
    assert set(changes) == {0, 1}
    assert all(same(change, dict(shown[client].change)) for client, change in changes.items())
    assert "the update is withheld: too much can be seen" in seen.lost["102"]


def test_a_seeded_mod_needs_to_know_the_round(grid_of: Callable[..., Any]) -> None:
    federation = build_federation(plan_of(), data_dir=None)
    grid = grid_of(app_of(federation, as_mod(Gaussian(), seed=7)), 1)
    content = RecordDict({"arrays": ArrayRecord(federation.model.state_dict())})
    (reply,) = grid.send_and_receive([Message(content, 100, "train")])
    assert "leave out the seed" in reply.error.reason
