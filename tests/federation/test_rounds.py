from __future__ import annotations

import importlib
import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import Defense, NoDefense
from keyhole.errors import BadUpdate
from keyhole.federation import (
    Federation,
    LocalTraining,
    Round,
    RoundClient,
    TrainingPlan,
    average_updates,
    build_federation,
    client_generator,
    train,
    train_client,
)
from keyhole.federation.backends import Backend, LoopTrainer, VmapTrainer
from keyhole.models import build
from keyhole.update import Update, read_safetensors
from trainings import PLAN, SMALL, assert_same, timeless, weights_of

RUN = importlib.import_module("keyhole.federation.run")


digits = load("digits")


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(one[name], other[name]) for name in one)


def federation(**values: Any) -> Federation:
    given: dict[str, Any] = {
        "model": build("mlp", classes=10, channels=1, image_size=8),
        "data": digits,
        "shares": [list(range(10 * i, 10 * i + 10)) for i in range(4)],
        "test": (digits, range(100, 160)),
        "training": LocalTraining(lr=0.05, epochs=1, batch_size=5),
        "defense": NoDefense(),
    }
    return Federation(**{**given, **values})


def test_updates_count_by_their_examples() -> None:
    sent = {"w": torch.tensor([1.0, 2.0])}
    one = Update({"w": torch.tensor([4.0, 0.0])}, examples=1)
    other = Update({"w": torch.tensor([0.0, 8.0])}, examples=3)
    assert torch.allclose(average_updates(sent, [one, other])["w"], torch.tensor([2.0, 8.0]))
    assert sent["w"].tolist() == [1.0, 2.0]


def test_a_single_update_is_added_as_it_is() -> None:
    sent, change = {"w": torch.randn(50)}, torch.randn(50)
    assert torch.equal(
        average_updates(sent, [Update({"w": change}, examples=7)])["w"], sent["w"] + change
    )


def test_integer_buffers_stay_integers() -> None:
    sent = {"seen": torch.tensor(10), "w": torch.zeros(1, dtype=torch.float64)}
    updates = [
        Update(
            {"seen": torch.tensor(n), "w": torch.ones(1, dtype=torch.float64)}, examples=examples
        )
        for n, examples in ((4, 3), (8, 1))
    ]
    after = average_updates(sent, updates)
    assert after["seen"].dtype == torch.int64
    assert after["seen"].item() == 15
    assert after["w"].dtype == torch.float64
    assert after["w"].item() == 1.0


@pytest.mark.parametrize("backend", [LoopTrainer(), VmapTrainer()], ids=["one by one", "together"])
def test_masks_of_bools_train_and_a_nan_among_the_weights_does_not(
    backend: Backend,
) -> None:
    clients = federation()
    clients.backend = backend
    clients.model.register_buffer("mask", torch.tensor([True, False]))
    clients.run_round(1)
    assert clients.model.state_dict()["mask"].tolist() == [True, False]
    clients.model.register_buffer("unused", torch.tensor(float("nan")))
    with pytest.raises(BadUpdate, match="the global weights have 1 NaN"):
        clients.run_round(2)


def test_the_average_of_half_precision_is_taken_in_single() -> None:
    sent = {"w": torch.zeros(1, dtype=torch.float16)}
    tiny = [Update({"w": torch.full((1,), 1e-4, dtype=torch.float16)}) for _ in range(3000)]
    after = average_updates(sent, tiny)["w"]
    assert float(after) == pytest.approx(1e-4, rel=0.01)


def test_the_average_keeps_the_weights_type() -> None:
    sent = {"w": torch.zeros(1, dtype=torch.float16)}
    update = Update({"w": torch.ones(1, dtype=torch.float16)})
    assert average_updates(sent, [update])["w"].dtype == torch.float16


def test_a_round_is_the_average_of_its_clients() -> None:
    shares = [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]
    made = federation(shares=shares)
    start = {n: t.clone() for n, t in made.model.state_dict().items()}
    twin = build("mlp", classes=10, channels=1, image_size=8)
    twin.load_state_dict(start)
    seen = made.run_round(1)
    assert [share.client for share in seen.updates] == [0, 1, 2]
    assert [share.update.examples for share in seen.updates] == [3, 5, 2]
    assert_same(dict(seen.sent), start)
    moved = {name: torch.zeros_like(t) for name, t in start.items()}
    for client, share in enumerate(shares):
        update, _ = train_client(
            twin,
            digits.images(share),
            digits.labels[share],
            data=digits,
            defense=NoDefense(),
            generator=client_generator(0, client, 1),
            training=made.training,
        )
        assert_same(dict(update.change), dict(seen.updates[client].update.change))
        for name, change in update.change.items():
            moved[name] += change * len(share) / 10
    for name, after in made.model.state_dict().items():
        assert torch.allclose(after, start[name] + moved[name], atol=1e-7)


def test_a_round_can_be_repeated_alone() -> None:
    made = federation()
    made.run_round(1)
    before = {n: t.clone() for n, t in made.model.state_dict().items()}
    made.run_round(2)
    alone = federation()
    alone.model.load_state_dict(before)
    alone.run_round(2)
    assert_same(made.model.state_dict(), alone.model.state_dict())


def test_evaluation_is_accuracy_and_mean_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.Dropout(0.5), nn.Linear(32, 10)
    ).train()
    made = federation(model=model, test=(digits, [5, 7, 300, 900, 1200, 11, 13]))
    indices = list(made.test[1])
    with torch.no_grad():
        logits = model.eval()(digits.normalise(digits.images(indices)))
    model.train()
    labels = digits.labels[indices]
    right = float((logits.argmax(1) == labels).double().mean())
    whole = made.evaluate()
    assert whole == pytest.approx((right, float(F.cross_entropy(logits, labels))), abs=1e-5)
    monkeypatch.setattr(importlib.import_module("keyhole.federation.rounds"), "EVALUATION_BATCH", 3)
    assert made.evaluate() == pytest.approx(whole, abs=1e-5)
    assert model.training
    assert model[2].num_batches_tracked.item() == 0


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.34, 3), (0.01, 1)])
def test_a_fraction_of_the_clients_takes_part(fraction: float, count: int) -> None:
    made = federation(shares=[[i] for i in range(10)], fraction=fraction)
    rounds = [made.sample_clients(number) for number in range(1, 80)]
    assert all(len(set(clients)) == len(clients) == count for clients in rounds)
    assert all(clients == sorted(clients) for clients in rounds)
    assert {client for clients in rounds for client in clients} == set(range(10))
    assert rounds == [made.sample_clients(number) for number in range(1, 80)]
    if count < 10:
        other = federation(shares=made.shares, fraction=fraction, seed=1)
        assert rounds != [other.sample_clients(number) for number in range(1, 80)]


def test_training_learns(tmp_path: Path) -> None:
    plan = TrainingPlan(clients=3, images=160, rounds=3, epochs=3, lr=0.1, together="no")
    result = train(plan, out=tmp_path)
    accuracies = [line["accuracy"] for line in result.rounds]
    assert accuracies[-1] > 0.6
    assert accuracies[-1] > accuracies[0]
    assert result.rounds[-1]["loss"] < result.rounds[0]["loss"]


@pytest.mark.parametrize("together", ["no", "yes"])
def test_the_same_plan_gives_the_same_weights(tmp_path: Path, together: str) -> None:
    plan = PLAN.model_copy(update={"together": together, "fraction": 0.7})
    one, same = train(plan, out=tmp_path / "one"), train(plan, out=tmp_path / "same")
    assert_same(one.model.state_dict(), same.model.state_dict())
    assert timeless(one.rounds) == timeless(same.rounds)
    other = train(plan.model_copy(update={"seed": 1}), out=tmp_path / "other")
    assert differ(one.model.state_dict(), other.model.state_dict())


def test_clients_trained_together_reach_the_same_weights(tmp_path: Path) -> None:
    alone = train(PLAN, out=tmp_path / "alone").model.state_dict()
    plan = PLAN.model_copy(update={"together": "yes"})
    beside = train(plan, out=tmp_path / "beside").model.state_dict()
    assert all(torch.allclose(alone[n], beside[n], atol=1e-5) for n in alone)


def test_clients_that_do_not_go_together_train_alone_in_a_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = federation(backend=VmapTrainer(), shares=[list(range(5)), list(range(5, 20))])
    calls: list[int] = []
    real = LoopTrainer.train

    def train_in_a_loop(
        self: LoopTrainer, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> object:
        calls.extend(len(client.images) for client in clients)
        return real(self, model, clients, defense=defense)

    monkeypatch.setattr(LoopTrainer, "train", train_in_a_loop)
    assert [s.update.examples for s in made.run_round(1).updates] == [5, 15]
    assert calls == [5, 15]


def test_the_record_has_a_line_a_round(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"fraction": 0.7, "defense": "gaussian(sigma=0.001)"})
    result = train(plan, out=tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    assert lines == list(result.rounds)
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert len(line["clients"]) == 2
        assert line["examples"] == [8, 8]
        assert all(norm > 0 for norm in line["update_norms"])
        assert [set(told) for told in line["defense"]] == [
            {"update_norm", "clip_scale", "noise_norm"}
        ] * 2
        assert line["seconds"] > 0
    made = build_federation(plan, data_dir=None)
    made.model.load_state_dict(result.model.state_dict())
    assert made.evaluate() == pytest.approx((lines[-1]["accuracy"], lines[-1]["loss"]))
    assert_same(weights_of(tmp_path), result.model.state_dict())
    assert not list(tmp_path.glob(".*"))


def test_a_watcher_sees_every_update_of_every_round(tmp_path: Path) -> None:
    seen: list[Round] = []
    done: list[int] = []

    def count(_: Round) -> None:
        done.append(len((tmp_path / "rounds.jsonl").read_text().splitlines()))

    result = train(PLAN, out=tmp_path, watchers=[seen.append, count])
    assert [r.number for r in seen] == [1, 2, 3]
    assert done == [1, 2, 3]
    assert all([share.client for share in r.updates] == [0, 1, 2] for r in seen)
    for earlier, later in itertools.pairwise(seen):
        expected = average_updates(earlier.sent, [share.update for share in earlier.updates])
        assert_same(expected, dict(later.sent))
    last = average_updates(seen[-1].sent, [share.update for share in seen[-1].updates])
    assert_same(last, result.model.state_dict())


def test_training_that_blows_up_is_told(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"lr": 1e38})
    with pytest.raises(BadUpdate, match="learning rate"):
        train(plan, out=tmp_path)


def test_weights_that_are_used_twice_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: nn.Module
) -> None:
    monkeypatch.setattr(RUN, "build", lambda *_, **__: tied)
    assert len(train(PLAN, out=tmp_path).rounds) == 3


def test_json_is_one_object_and_nothing_else(
    keyhole: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    command = (*SMALL, "--rounds", "2", "--out", "run", "--json")
    code, out, err = keyhole(*command)
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"accuracy", "loss", "rounds", "resumed_after", "run", "weights"} <= set(found)
    assert (found["run"], found["captured"], found["resumed_after"]) == ("run", None, 0)
    assert found["accuracy"] == found["rounds"][-1]["accuracy"]
    assert (tmp_path / found["weights"]).is_file()
    again = json.loads(keyhole(*command)[1])
    assert again == {**found, "resumed_after": 2}


def test_people_are_told_every_round_and_how_to_audit_it(
    keyhole: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = keyhole(*SMALL, "--rounds", "2", "--out", "run", "--capture", "seen")
    assert code == 0
    assert "round   1  accuracy" in out
    assert "round   2  accuracy" in out
    assert "keyhole audit --captured seen --model mlp --data digits" in out
    assert "run/checkpoint.safetensors" in out
    assert "continued after round 2" in keyhole(*SMALL, "--rounds", "2", "--out", "run")[2]


def test_trained_weights_can_be_started_from(
    keyhole: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    keyhole(*SMALL, "--rounds", "1", "--out", "one")
    start = ("--weights", "one/checkpoint.safetensors", "--capture", "seen")
    assert keyhole(*SMALL, "--rounds", "1", "--out", "two", *start)[0] == 0
    sent = read_safetensors(tmp_path / "seen" / "round-0001" / "global.safetensors")[0]
    assert_same(sent, weights_of(tmp_path / "one"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--clients", "0"), "clients: input should be greater than or equal to 1"),
        (("--fraction", "1.5"), "fraction"),
        (("--lr", "nan"), "lr"),
        (("--optimiser", "lbfgs"), "known: adam, adamw, sgd"),
        (("--together", "maybe"), "'auto', 'yes' or 'no'"),
        (("--partition", "dirichlet(alpha=0)"), "alpha"),
        (("--partition", "by-user"), "USER/CLASS/IMAGE"),
        (("--defense", "dropuot"), "did you mean dropout"),
        (("--model", "lenet", "--defense", "gaussian(sigma=-1)"), "sigma"),
        (("--weights", "nowhere.safetensors"), "does not exist"),
        (("--clients", "1797"), "pass fewer --clients"),
        (("--data", "digts"), "did you mean digits"),
        (("--momentum", "1"), "momentum"),
        (("--clip", "0"), "clip"),
    ],
)
def test_bad_input_gets_one_clear_line_and_leaves_nothing(
    keyhole: Callable[..., tuple[int, str, str]],
    tmp_path: Path,
    options: tuple[str, ...],
    words: str,
) -> None:
    code, out, err = keyhole(*SMALL, "--rounds", "1", "--capture", "seen", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("keyhole: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_lost_is_told_in_a_line_or_in_json(
    keyhole: Callable[..., tuple[int, str, str]],
) -> None:
    options = ("--steps", "1", "--lr", "1e30", "--rounds", "1", "--json")
    code, out, err = keyhole(*SMALL, *options)
    assert (code == 2 and err.count("\n") == 1) or json.loads(out)["loss"] is None


def test_people_are_told_of_a_model_that_is_lost(
    keyhole: Callable[..., tuple[int, str, str]],
) -> None:
    code, out, _ = keyhole(*SMALL, "--steps", "1", "--lr", "1e30", "--rounds", "1")
    assert code == 0
    assert "round   1  accuracy" in out


def replace_seed(plan: TrainingPlan) -> TrainingPlan:
    return plan.model_copy(update={"seed": 1})


def test_a_plan_says_what_clients_do() -> None:
    plan = TrainingPlan(epochs=2, batch_size=5, lr=0.1, clip=1.0, augment=True, optimiser="adam")
    assert plan.training == LocalTraining(
        lr=0.1, epochs=2, batch_size=5, clip=1.0, augment=True, optimiser="adam", momentum=0.9
    )
    steps = plan.model_copy(update={"steps": 4}).training
    assert (steps.steps, steps.epochs) == (4, None)
    assert plan.digest != replace_seed(plan).digest
    assert TrainingPlan(**plan.to_json()) == plan


def test_data_sets_with_a_test_part_are_evaluated_on_it(
    data_dir: Path,
) -> None:
    made = build_federation(TrainingPlan(data="mnist", clients=2, images=2), data_dir=str(data_dir))
    assert made.test[0] is not made.data
    assert len(made.test[1]) == len(made.test[0])


def test_what_is_held_out_is_never_trained_on() -> None:
    made = build_federation(TrainingPlan(clients=3), data_dir=None)
    trained = {i for share in made.shares for i in share}
    assert not trained & set(made.test[1])
    assert len(trained) + len(made.test[1]) == len(digits)
    assert len(made.test[1]) == round(0.2 * len(digits))
    assert replace(made, seed=3).sample_clients(1) == [0, 1, 2]
