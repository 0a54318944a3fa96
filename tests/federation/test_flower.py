"""Mods and curious strategies under Flower's own strategies, without its processes."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx

from keyhole.audit.guard import guard_mod
from keyhole.data import ImageSet
from keyhole.defenses import (
    Agp,
    ClientSide,
    Defense,
    Dp,
    Dropout,
    Gaussian,
    NoDefense,
    Pruning,
    Tip,
)
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation import (
    Capture,
    Federation,
    TrainingPlan,
    assemble,
    client_generator,
    defended_update,
)
from keyhole.federation.flower import (
    CallNext,
    as_mod,
    before_upload,
    curious,
    local_training,
    protected_images,
    protected_model,
    tell_defense,
)
from keyhole.update import Update

CLIENTS = 3
Run = Callable[..., dict[str, Tensor]]


def plan_of(model: str = "mlp", **settings: Any) -> TrainingPlan:
    small = {"clients": CLIENTS, "images": 12, "batch_size": 5, "epochs": 2, "seed": 7}
    return TrainingPlan(model=model, **(small | {"together": "no"} | settings))


def answer(message: Message, weights: dict[str, Tensor], examples: int, client: int) -> Message:
    said = MetricRecord({"num-examples": examples, "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": said}), reply_to=message)


def app_of(federation: Federation, *mods: Any) -> ClientApp:
    """Clients that hold the federation's shares and train by Keyhole's own loop."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        number = message.content["config"]["server-round"]
        start = message.content["arrays"].to_torch_state_dict()
        federation.model.load_state_dict(start)
        member = federation.member(number, client)
        update = local_training(
            federation.model,
            member.images,
            member.labels,
            data=federation.data,
            training=federation.training,
            generator=member.generator,
        )
        start = federation.model.state_dict()
        end = {name: tensor + update.change[name] for name, tensor in start.items()}
        return answer(message, end, update.examples, client)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        return answer(message, arrays, 1, context.node_config["partition-id"])

    return app


@pytest.fixture
def run(grid_of: Callable[..., Any], tmp_path: Path) -> Run:
    """Trains by a strategy that is curious into ``tmp_path``; returns the global weights."""

    def rounds(
        app: ClientApp, start: nn.Module, last: int = 1, kind: type = FedAvg, **options: Any
    ) -> dict[str, Tensor]:
        everyone = {"min_available_nodes": CLIENTS, "min_train_nodes": CLIENTS}
        strategy = curious(kind)(
            capture=tmp_path, fresh=True, fraction_evaluate=0.0, **everyone, **options
        )
        arrays = ArrayRecord(start.state_dict())
        grid = grid_of(app, CLIENTS)
        result = strategy.start(grid, arrays, num_rounds=last, train_config=ConfigRecord())
        return dict(result.arrays.to_torch_state_dict())

    return rounds


def recorded(folder: Path, number: int = 1, lost: int = 0) -> dict[int, dict[str, Tensor]]:
    """What each client changed in a round, as the server saw it, by partition."""
    seen = Capture.open(folder).rounds[number - 1]
    assert len(seen.clients) == CLIENTS - lost, seen.lost
    return {client["metrics"]["partition-id"]: seen.change(client) for client in seen.clients}


def as_it_travels(start: dict[str, Tensor], change: dict[str, Tensor]) -> dict[str, Tensor]:
    """A change after it was added to float32 weights, sent, and taken from them again."""
    return {name: (start[name] + change[name]) - start[name] for name in start}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> bool:
    return one.keys() == other.keys() and all(
        float((one[n] - other[n]).abs().max()) <= tolerance for n in one
    )


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
    alone = assemble(plan, data_dir=None)
    start = assemble(plan, data_dir=None)
    found = run(app_of(start, as_mod(start.defense, seed=plan.seed)), start.model, last=3)
    for _ in alone.rounds(1, 3):
        pass
    assert close(found, dict(alone.model.state_dict()), 1e-5)
    before = assemble(plan, data_dir=None).model.state_dict()
    assert not close(found, dict(before), 1e-2)


def test_no_defense_changes_no_bit(run: Run, tmp_path: Path) -> None:
    federation, other = (assemble(plan_of(lr=0.5), data_dir=None) for _ in range(2))
    bare = run(app_of(federation), federation.model)
    first = recorded(tmp_path)
    found = run(app_of(other, as_mod(NoDefense(), seed=7)), other.model)
    assert close(found, bare, 1e-6)  # clients are averaged in another order
    assert all(same(first[client], change) for client, change in recorded(tmp_path).items())


@pytest.mark.parametrize("defense", [Gaussian(sigma=0.01, clip=0.5), Pruning(ratio=0.9)])
def test_a_recording_differs_by_what_the_defense_does_to_updates(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    federation = assemble(plan_of(), data_dir=None)
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


@dataclass(frozen=True)
class Grain(Defense):
    """Adds noise to images, anew whenever they are shown."""

    name: ClassVar[str] = "grain"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert side.labels is not None
        return images + 0.3 * torch.randn(images.shape, generator=side.generator)


@dataclass(frozen=True)
class Signs(Defense):
    """Every local step goes by the signs of a loss of its own."""

    name: ClassVar[str] = "signs"

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor]:
        loss = model(inputs)[torch.arange(len(labels)), labels].sum()
        return [g.sign() for g in torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("defense", [Dropout(p=0.5), Grain(), Signs()], ids=lambda d: d.name)
def test_a_recording_differs_by_what_the_defense_does_in_training(
    run: Run, tmp_path: Path, defense: Defense
) -> None:
    plan = plan_of(lr=0.01)
    federation, untouched = (assemble(plan, data_dir=None) for _ in range(2))
    run(app_of(federation, as_mod(defense, seed=7)), federation.model)
    for client, seen in recorded(tmp_path).items():
        member = untouched.member(1, client)
        expected, plain = (
            defended_update(
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


@pytest.mark.parametrize(
    ("defense", "missing"),
    [
        (Grain(), "protected_images(images)"),
        (Dropout(), "protected_model(model)"),
        (Signs(), "protected_step(model, inputs, labels)"),
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
            protected_images(torch.rand(1, 1, 8, 8))
        if "model" not in missing.partition("(")[0]:
            protected_model(nn.Linear(1, 1))
        return answer(message, message.content["arrays"].to_torch_state_dict(), 1, 0)

    assert run(app, assemble(plan_of(), data_dir=None).model) == {}
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
        member = federation.member(1, client)
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
    federation = assemble(plan_of("lenet"), data_dir=None)
    start = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
    normalise = federation.data.normalise

    def told(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        tell_defense(model, images, labels, steps=2, lr=0.05, batch_size=12, normalise=normalise)

    assert told(nn.Linear(1, 1), torch.rand(1), torch.zeros(1)) is None  # no mod, no harm
    run(own_loop(federation, told), federation.model)
    plain = recorded(tmp_path)
    run(own_loop(federation, told, as_mod(defense, seed=7)), federation.model)
    for client, seen in recorded(tmp_path).items():
        member = federation.member(1, client)
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
    federation = assemble(plan_of("lenet"), data_dir=None)
    app = own_loop(federation, lambda *_: None, as_mod(defense))
    assert run(app, federation.model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert seen.clients == ()
    call = "tell_defense(model, images, labels, steps=..., lr=..., batch_size=...)"
    assert all(call in reason and defense.name in reason for reason in seen.lost.values())


def test_a_defense_that_was_told_of_another_model_sends_nothing(run: Run, tmp_path: Path) -> None:
    federation = assemble(plan_of("lenet"), data_dir=None)

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

    federation, alone = (assemble(plan_of(lr=0.01), data_dir=None) for _ in range(2))
    grid = grid_of(app_of(federation, as_mod(Louder(), seed=7)), CLIENTS)
    start = ArrayRecord(federation.model.state_dict())
    found = FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS).start(grid, start, num_rounds=3)
    alone.defense = Louder()
    for _ in alone.rounds(1, 3):
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

    federation = assemble(plan_of(lr=0.01), data_dir=None)
    mods = [as_mod(Gaussian()), as_mod(Counting("outer")), as_mod(Counting("inner"))]
    grid = grid_of(app_of(federation, *mods), CLIENTS)
    start = ArrayRecord(federation.model.state_dict())
    FedAvg(fraction_evaluate=0.0, min_train_nodes=CLIENTS).start(grid, start, num_rounds=3)
    for context in grid.contexts.values():
        kept = json.loads(str(context.state.config_records["keyhole-memory"]["json"]))
        assert kept == {"inner": [1, 1, 1], "outer": [1, 1, 1]}


def test_evaluation_passes_untouched_where_that_is_allowed(grid_of: Callable[..., Any]) -> None:
    federation = assemble(plan_of(), data_dir=None)
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


def with_statistics(federation: Federation) -> Federation:
    """The federation with a model that counts its batches, an integer."""
    federation.model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10)
    )
    return federation


def test_integers_survive(run: Run, tmp_path: Path) -> None:
    federation = with_statistics(assemble(plan_of(steps=3), data_dir=None))
    app = app_of(federation, as_mod(Gaussian(sigma=1.0), seed=7))
    found = run(app, federation.model, last=2)
    for number in (1, 2):
        for change in recorded(tmp_path, number).values():
            counted = change["1.num_batches_tracked"]
            assert (int(counted), counted.dtype) == (3, torch.int64)
            assert float(change["4.weight"].std()) == pytest.approx(1, abs=0.1)
    assert int(found["1.num_batches_tracked"]) == 6


def test_a_client_that_fails_is_noted(run: Run, tmp_path: Path) -> None:
    federation = assemble(plan_of(), data_dir=None)

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
    federation, other = (assemble(plan_of(), data_dir=None) for _ in range(2))
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
    federation, other = (assemble(plan_of(), data_dir=None) for _ in range(2))
    found = run(app_of(federation), federation.model, last=2, kind=FedAdam, eta=0.01)
    start = ArrayRecord(other.model.state_dict())
    blind = FedAdam(fraction_evaluate=0.0, min_train_nodes=CLIENTS, eta=0.01)
    result = blind.start(grid_of(app_of(other), CLIENTS), start, num_rounds=2)
    assert close(found, dict(result.arrays.to_torch_state_dict()), 1e-5)
    first, second = Capture.open(tmp_path).rounds
    assert same(first.weights(), dict(start.to_torch_state_dict()))
    assert not close(second.weights(), first.weights(), 1e-3)


def test_what_the_strategy_told_its_clients_is_noted(run: Run, tmp_path: Path) -> None:
    federation = assemble(plan_of(), data_dir=None)
    run(app_of(federation), federation.model, kind=FedProx, proximal_mu=0.5, about={"model": "mlp"})
    capture = Capture.open(tmp_path)
    assert capture.rounds[0].config == {"proximal-mu": 0.5, "server-round": 1}
    assert capture.about == {"model": "mlp"}
    assert [client["examples"] for client in capture.rounds[0].clients] == [12] * CLIENTS


def test_an_update_can_be_held_back_before_the_upload(run: Run, tmp_path: Path) -> None:
    federation = assemble(plan_of(), data_dir=None)
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
    federation = assemble(plan_of(), data_dir=None)
    grid = grid_of(app_of(federation, as_mod(Gaussian(), seed=7)), 1)
    content = RecordDict({"arrays": ArrayRecord(federation.model.state_dict())})
    (reply,) = grid.send_and_receive([Message(content, 100, "train")])
    assert "leave out the seed" in reply.error.reason


def alone(
    federation: Federation,
) -> Callable[[Context], tuple[nn.Module, ImageSet, Tensor, Tensor]]:
    """What each node knows of itself."""

    def own(context: Context) -> tuple[nn.Module, ImageSet, Tensor, Tensor]:
        share = list(federation.shares[int(context.node_config["partition-id"])])
        data = federation.data
        return copy.deepcopy(federation.model), data, data.images(share), data.labels[share]

    return own


def test_a_guarded_client_withholds_what_would_leak(run: Run, tmp_path: Path) -> None:
    federation = assemble(plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None)

    def noise_for_two(message: Message, context: Context, call_next: Any) -> Message:
        if context.node_config["partition-id"] == 0:
            return call_next(message, context)
        return as_mod(Gaussian(sigma=1.0), seed=7)(message, context, call_next)

    run(
        app_of(federation, guard_mod(0.5, client=alone(federation), seconds=0), noise_for_two),
        federation.model,
    )
    (seen,) = Capture.open(tmp_path).rounds
    assert set(recorded(tmp_path, lost=1)) == {1, 2}
    assert "patch-lstsq (naive) reads 1 of 1 images" in seen.lost["100"]


@pytest.mark.parametrize(
    ("choices", "lost"),
    [({}, 3), ({"untested": "warn"}, 0), ({"warn": True}, 0)],
    ids=["by default", "untested may pass", "all may pass"],
)
def test_a_guarded_client_withholds_what_could_not_be_tested_unless_told_otherwise(
    run: Run,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    choices: dict[str, Any],
    lost: int,
) -> None:
    federation = assemble(plan_of("lenet", images=1, batch_size=1, steps=1), data_dir=None)
    mod = guard_mod(client=alone(federation), seconds=0, **choices)
    run(app_of(federation, mod), federation.model)
    warned = [r.getMessage() for r in caplog.records if r.name == "keyhole"]
    assert sum("no attack on images was tried" in text for text in warned) == CLIENTS
    assert len(recorded(tmp_path, lost=lost)) == CLIENTS - lost


def test_a_guard_may_only_warn(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    federation = assemble(plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None)

    run(app_of(federation, guard_mod(client=alone(federation), warn=True)), federation.model)
    assert len(recorded(tmp_path)) == CLIENTS
    assert caplog.text.count("reads 1 of 1 images") == CLIENTS


def test_a_guard_withholds_tensors_that_the_model_does_not_have(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    federation = assemble(plan_of("vit-small", images=1, batch_size=1, steps=1), data_dir=None)

    def adds_images(message: Message, context: Any, call_next: CallNext) -> Message:
        reply = call_next(message, context)
        sent = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({**sent, "images": torch.rand(1, 8, 8)})
        return reply

    guard = guard_mod(client=alone(federation), warn=True, seconds=0)
    assert run(app_of(federation, guard, adds_images), federation.model) == {}
    (seen,) = Capture.open(tmp_path).rounds
    assert all("'images', which the model does not have" in why for why in seen.lost.values())
