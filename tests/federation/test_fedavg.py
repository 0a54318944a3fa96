from __future__ import annotations

import importlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, Defense, NoDefense
from keyhole.errors import BadUpdate, DoesNotFit, KeyholeError, RunFolderError
from keyhole.federation import (
    Federation,
    LocalTraining,
    Round,
    TrainingPlan,
    assemble,
    averaged,
    client_generator,
    defended_update,
    train,
)
from keyhole.federation.together import Together
from keyhole.models import build
from keyhole.update import Update, read_safetensors

RUN = importlib.import_module("keyhole.federation.run")

digits = load("digits")
PLAN = TrainingPlan(clients=3, images=8, rounds=3, epochs=1, batch_size=4, together="no")


def weights_of(folder: Path) -> dict[str, Tensor]:
    return read_safetensors(folder / "checkpoint.safetensors")[0]


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def differ(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return any(not torch.equal(one[name], other[name]) for name in one)


def timeless(lines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


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
    assert torch.allclose(averaged(sent, [one, other])["w"], torch.tensor([2.0, 8.0]))
    assert sent["w"].tolist() == [1.0, 2.0]


def test_a_single_update_is_added_as_it_is() -> None:
    sent, change = {"w": torch.randn(50)}, torch.randn(50)
    assert torch.equal(averaged(sent, [Update({"w": change}, examples=7)])["w"], sent["w"] + change)


def test_integer_buffers_stay_integers() -> None:
    sent = {"seen": torch.tensor(10), "w": torch.zeros(1, dtype=torch.float64)}
    updates = [
        Update(
            {"seen": torch.tensor(n), "w": torch.ones(1, dtype=torch.float64)}, examples=examples
        )
        for n, examples in ((4, 3), (8, 1))
    ]
    after = averaged(sent, updates)
    assert after["seen"].dtype == torch.int64
    assert after["seen"].item() == 15
    assert after["w"].dtype == torch.float64
    assert after["w"].item() == 1.0


def test_the_average_of_half_precision_is_taken_in_single() -> None:
    sent = {"w": torch.zeros(1, dtype=torch.float16)}
    tiny = [Update({"w": torch.full((1,), 1e-4, dtype=torch.float16)}) for _ in range(3000)]
    after = averaged(sent, tiny)["w"]
    assert float(after) == pytest.approx(1e-4, rel=0.01)


def test_the_average_keeps_the_weights_type() -> None:
    sent = {"w": torch.zeros(1, dtype=torch.float16)}
    update = Update({"w": torch.ones(1, dtype=torch.float16)})
    assert averaged(sent, [update])["w"].dtype == torch.float16


def test_a_round_is_the_average_of_its_clients() -> None:
    shares = [[0, 1, 2], [3, 4, 5, 6, 7], [8, 9]]
    made = federation(shares=shares)
    start = {n: t.clone() for n, t in made.model.state_dict().items()}
    twin = build("mlp", classes=10, channels=1, image_size=8)
    twin.load_state_dict(start)
    seen = made.round(1)
    assert [share.client for share in seen.shares] == [0, 1, 2]
    assert [share.update.examples for share in seen.shares] == [3, 5, 2]
    assert_same(dict(seen.sent), start)
    moved = {name: torch.zeros_like(t) for name, t in start.items()}
    for client, share in enumerate(shares):
        update, _ = defended_update(
            twin,
            digits.images(share),
            digits.labels[share],
            data=digits,
            defense=NoDefense(),
            generator=client_generator(0, client, 1),
            training=made.training,
        )
        assert_same(dict(update.change), dict(seen.shares[client].update.change))
        for name, change in update.change.items():
            moved[name] += change * len(share) / 10
    for name, after in made.model.state_dict().items():
        assert torch.allclose(after, start[name] + moved[name], atol=1e-7)


def test_a_round_can_be_repeated_alone() -> None:
    made = federation()
    made.round(1)
    before = {n: t.clone() for n, t in made.model.state_dict().items()}
    made.round(2)
    alone = federation()
    alone.model.load_state_dict(before)
    alone.round(2)
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
    monkeypatch.setattr(
        importlib.import_module("keyhole.federation.fedavg"), "EVALUATED_AT_ONCE", 3
    )
    assert made.evaluate() == pytest.approx(whole, abs=1e-5)
    assert model.training
    assert model[2].num_batches_tracked.item() == 0


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 10), (0.5, 5), (0.34, 3), (0.01, 1)])
def test_a_fraction_of_the_clients_takes_part(fraction: float, count: int) -> None:
    made = federation(shares=[[i] for i in range(10)], fraction=fraction)
    rounds = [made.sampled(number) for number in range(1, 80)]
    assert all(len(set(clients)) == len(clients) == count for clients in rounds)
    assert all(clients == sorted(clients) for clients in rounds)
    assert {client for clients in rounds for client in clients} == set(range(10))
    assert rounds == [made.sampled(number) for number in range(1, 80)]
    if count < 10:
        other = federation(shares=made.shares, fraction=fraction, seed=1)
        assert rounds != [other.sampled(number) for number in range(1, 80)]


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
    made = federation(together=Together(), shares=[list(range(5)), list(range(5, 20))])
    calls: list[int] = []
    real = Federation.alone
    monkeypatch.setattr(Federation, "alone", lambda s, m: calls.append(len(m.images)) or real(s, m))
    assert [s.update.examples for s in made.round(1).shares] == [5, 15]
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
        assert 0 <= line["accuracy"] <= 1
        assert line["seconds"] > 0
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
    assert all([share.client for share in r.shares] == [0, 1, 2] for r in seen)
    for earlier, later in itertools.pairwise(seen):
        expected = averaged(earlier.sent, [share.update for share in earlier.shares])
        assert_same(expected, dict(later.sent))
    last = averaged(seen[-1].sent, [share.update for share in seen[-1].shares])
    assert_same(last, result.model.state_dict())


class Killed(Exception):
    """Stands for a kill in the middle of the work."""


def kill_at(number: int) -> Callable[[Round], None]:
    def watch(seen: Round) -> None:
        if seen.number == number:
            raise Killed

    return watch


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The training as it is when nothing interrupts it."""
    folder = tmp_path_factory.mktemp("whole")
    train(PLAN, out=folder)
    return folder


def record_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return timeless([json.loads(line) for line in lines])


@pytest.mark.parametrize("number", [1, 2])
def test_a_stopped_training_is_continued(tmp_path: Path, whole: Path, number: int) -> None:
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path, watchers=[kill_at(number)])
    result = train(PLAN, out=tmp_path)
    assert result.resumed_after == number
    assert_same(weights_of(tmp_path), weights_of(whole))
    assert record_of(tmp_path) == record_of(whole)


def test_a_round_that_was_recorded_but_not_kept_is_done_again(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, written = RUN.write_tensors, []

    def third_fails(*values: Any) -> Path:
        if len(written) == 2:
            raise Killed
        written.append(1)
        return real(*values)

    monkeypatch.setattr(RUN, "write_tensors", third_fails)
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path)
    monkeypatch.undo()
    assert len(record_of(tmp_path)) == 2
    assert train(PLAN, out=tmp_path).resumed_after == 1
    assert_same(weights_of(tmp_path), weights_of(whole))
    assert record_of(tmp_path) == record_of(whole)


@pytest.mark.parametrize("torn", ['{"round": 3, "accur', '{"round": 3, "accuracy": 0.5', "{", '"'])
def test_a_line_torn_by_a_kill_is_survived(tmp_path: Path, whole: Path, torn: str) -> None:
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path, watchers=[kill_at(2)])
    with (tmp_path / "rounds.jsonl").open("a") as record:
        record.write(torn)
    assert train(PLAN, out=tmp_path).resumed_after == 2
    assert record_of(tmp_path) == record_of(whole)
    assert_same(weights_of(tmp_path), weights_of(whole))


@pytest.mark.parametrize("damage", ["torn", "gone"])
def test_a_damaged_record_of_a_finished_training_is_survived(tmp_path: Path, damage: str) -> None:
    plan = PLAN.model_copy(update={"rounds": 1})
    accuracy = train(plan, out=tmp_path).to_json()["accuracy"]
    record = tmp_path / "rounds.jsonl"
    if damage == "torn":
        record.write_text(record.read_text()[:30])
    else:
        record.unlink()
    assert train(plan, out=tmp_path).to_json()["accuracy"] == accuracy


def test_what_a_kill_left_half_written_is_removed(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path, watchers=[kill_at(1)])
    (tmp_path / ".checkpoint.safetensors.123.half").write_bytes(b"half")
    train(PLAN, out=tmp_path)
    assert not list(tmp_path.glob(".*"))
    assert_same(weights_of(tmp_path), weights_of(whole))


def test_a_training_killed_as_it_wrote_its_plan_begins_anew(tmp_path: Path, whole: Path) -> None:
    (tmp_path / ".plan.json.123.half").write_text("{")
    train(PLAN, out=tmp_path)
    assert_same(weights_of(tmp_path), weights_of(whole))


def test_more_rounds_may_be_asked_for_later(tmp_path: Path, whole: Path) -> None:
    train(PLAN.model_copy(update={"rounds": 1}), out=tmp_path)
    result = train(PLAN, out=tmp_path)
    assert (result.resumed_after, len(result.rounds)) == (1, 3)
    assert_same(weights_of(tmp_path), weights_of(whole))
    assert record_of(tmp_path) == record_of(whole)


def test_a_finished_training_is_not_repeated(tmp_path: Path) -> None:
    first = train(PLAN, out=tmp_path)
    stamp = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
    again = train(PLAN, out=tmp_path, watchers=[kill_at(1), kill_at(2), kill_at(3)])
    assert again.resumed_after == 3
    assert again.to_json() == {**first.to_json(), "resumed_after": 3}
    assert_same(again.model.state_dict(), first.model.state_dict())
    assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == stamp


def test_how_clients_were_trained_is_kept_to_when_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PLAN.model_copy(update={"together": "auto"})
    monkeypatch.setattr(RUN, "faster_together", lambda model, members: True)
    with pytest.raises(Killed):
        train(plan, out=tmp_path / "run", watchers=[kill_at(1)])
    monkeypatch.setattr(RUN, "faster_together", lambda model, members: False)
    train(plan, out=tmp_path / "run")
    beside = PLAN.model_copy(update={"together": "yes"})
    train(beside, out=tmp_path / "beside")
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "beside"))


@dataclass(frozen=True)
class Counting(Defense):
    """Adds as much to the weights as it has been asked before."""

    name: ClassVar[str] = "counting"

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        assert side is not None
        times = side.memory["times"] = side.memory.get("times", 0) + 1
        side.memory["history"] = [*side.memory.get("history", []), float(update.norm())]
        side.record(times=times)
        return update.map(lambda name, tensor: tensor + 0.001 * times)


@pytest.mark.parametrize("together", ["no", "yes"])
def test_what_defenses_remember_survives_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: str
) -> None:
    monkeypatch.setitem(DEFENSES._members, "counting", Counting)
    plan = PLAN.model_copy(update={"defense": "counting", "fraction": 0.67, "together": together})
    result = train(plan, out=tmp_path / "whole")
    with pytest.raises(Killed):
        train(plan, out=tmp_path / "run", watchers=[kill_at(2)])
    train(plan, out=tmp_path / "run")
    assert_same(weights_of(tmp_path / "run"), weights_of(tmp_path / "whole"))
    assert record_of(tmp_path / "run") == record_of(tmp_path / "whole")
    counted: dict[int, int] = {}
    for line in result.rounds:
        for client, told in zip(line["clients"], line["defense"], strict=True):
            counted[client] = counted.get(client, 0) + 1
            assert told == {"times": counted[client]}
    assert max(counted.values()) > 1


def test_a_privacy_budget_is_spent_across_a_stop(tmp_path: Path) -> None:
    pytest.importorskip("opacus")
    plan = PLAN.model_copy(update={"defense": "dpsgd(noise=1.0)", "rounds": 2, "clients": 2})
    result = train(plan, out=tmp_path / "whole")
    train(plan.model_copy(update={"rounds": 1}), out=tmp_path / "run")
    resumed = train(plan, out=tmp_path / "run")
    spent = [[told["epsilon"] for told in line["defense"]] for line in resumed.rounds]
    assert all(later > earlier for earlier, later in zip(*spent, strict=True))
    assert timeless(resumed.rounds) == timeless(result.rounds)


@pytest.mark.parametrize(
    "values", [{"lr": 0.5}, {"clients": 4}, {"seed": 9}, {"defense": "pruning"}]
)
def test_another_training_in_the_same_folder_is_refused(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    train(PLAN.model_copy(update={"rounds": 1}), out=tmp_path)
    before = weights_of(tmp_path)
    with pytest.raises(
        RunFolderError, match="holds another training: choose another --out"
    ) as error:
        train(PLAN.model_copy(update=values), out=tmp_path)
    assert "\n" not in str(error.value)
    assert_same(weights_of(tmp_path), before)


def test_fresh_replaces_a_training(tmp_path: Path) -> None:
    train(PLAN, out=tmp_path)
    other = PLAN.model_copy(update={"rounds": 1, "seed": 5})
    result = train(other, out=tmp_path, fresh=True)
    assert (result.resumed_after, len(result.rounds)) == (0, 1)
    assert record_of(tmp_path) == timeless(result.rounds)


@pytest.mark.parametrize("beside", ["notes.txt", "capture.json"])
def test_fresh_replaces_a_training_beside_other_files(tmp_path: Path, beside: str) -> None:
    train(PLAN, out=tmp_path)
    (tmp_path / beside).write_text("{}")
    try:
        train(PLAN.model_copy(update={"rounds": 1, "seed": 5}), out=tmp_path, fresh=True)
    except RunFolderError:
        assert (tmp_path / "checkpoint.safetensors").is_file(), "refused, yet the run is gone"
    assert (tmp_path / beside).read_text() == "{}"


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_other_files_is_refused(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="holds other files: choose another --out"):
        train(PLAN, out=tmp_path, fresh=fresh)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    plan = TrainingPlan(clients=3, together="yes", partition="dirichlet(alpha=0.1)")
    with pytest.raises(DoesNotFit):
        train(plan, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_checkpoint_is_told(tmp_path: Path) -> None:
    train(PLAN.model_copy(update={"rounds": 1}), out=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(KeyholeError, match=r"checkpoint\.safetensors") as raised:
        train(PLAN, out=tmp_path)
    assert "\n" not in str(raised.value)


def test_training_that_blows_up_is_told(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"lr": 1e38})
    with pytest.raises(BadUpdate, match="learning rate"):
        train(plan, out=tmp_path)


def test_a_model_with_batch_statistics_is_trained_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RUN, "build", lambda *_, **__: normed())
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path / "run", watchers=[kill_at(1)])
    train(PLAN, out=tmp_path / "run")
    train(PLAN, out=tmp_path / "whole")
    after = weights_of(tmp_path / "run")
    assert_same(after, weights_of(tmp_path / "whole"))
    assert after["1.num_batches_tracked"].item() == 3 * 2
    assert after["1.running_mean"].any()


def normed() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 36, 10))


def test_weights_that_are_used_twice_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tied: nn.Module
) -> None:
    monkeypatch.setattr(RUN, "build", lambda *_, **__: tied)
    assert len(train(PLAN, out=tmp_path).rounds) == 3


OPTIONS = ("--clients", "3", "--images", "8", "--epochs", "1", "--batch-size", "4")
SMALL = ("train", "--data", "digits", "--model", "mlp", *OPTIONS, "--together", "no")


def wait_for_rounds(process: subprocess.Popen[bytes], record: Path, count: int) -> None:
    deadline = time.monotonic() + 60
    while not record.is_file() or record.read_bytes().count(b"\n") < count:
        assert process.poll() is None, "the training ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_training_killed_for_good_ends_with_the_same_weights(
    tmp_path: Path, keyhole: Callable[..., tuple[int, str, str]]
) -> None:
    command = [*SMALL, "--rounds", "16", "--defense", "gaussian(sigma=0.001)", "--json"]
    run = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "keyhole", *command, "--out", str(run)], stdout=subprocess.DEVNULL
    )
    try:
        wait_for_rounds(process, run / "rounds.jsonl", 2)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    resumed = json.loads(keyhole(*command, "--out", str(run))[1])
    uninterrupted = json.loads(keyhole(*command, "--out", "other")[1])
    assert 1 <= resumed["resumed_after"] < 16
    assert_same(weights_of(run), weights_of(tmp_path / "other"))
    assert timeless(resumed["rounds"]) == timeless(uninterrupted["rounds"])
    assert [line["round"] for line in resumed["rounds"]] == list(range(1, 17))
    assert not list(run.glob(".*.half"))


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
    assert "taken up after round 2" in keyhole(*SMALL, "--rounds", "2", "--out", "run")[2]


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
        (("--optimiser", "lbfgs"), "'sgd' or 'adam'"),
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


def test_a_plan_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(RunFolderError):
        train(PLAN, out=tmp_path)


def test_a_plan_says_what_clients_do() -> None:
    plan = TrainingPlan(epochs=2, batch_size=5, lr=0.1, clip=1.0, augment=True, optimiser="adam")
    assert plan.training == LocalTraining(
        lr=0.1, epochs=2, batch_size=5, clip=1.0, augment=True, optimiser="adam", momentum=0.9
    )
    steps = plan.model_copy(update={"steps": 4}).training
    assert (steps.steps, steps.epochs) == (4, None)
    assert plan.digest != replace_seed(plan).digest
    assert TrainingPlan(**plan.to_json()) == plan


def replace_seed(plan: TrainingPlan) -> TrainingPlan:
    return plan.model_copy(update={"seed": 1})


def test_data_sets_with_a_test_part_are_evaluated_on_it(
    data_dir: Path,
) -> None:
    made = assemble(TrainingPlan(data="mnist", clients=2, images=2), data_dir=str(data_dir))
    assert made.test[0] is not made.data
    assert len(made.test[1]) == len(made.test[0])


def test_what_is_held_out_is_never_trained_on() -> None:
    made = assemble(TrainingPlan(clients=3), data_dir=None)
    trained = {i for share in made.shares for i in share}
    assert not trained & set(made.test[1])
    assert len(trained) + len(made.test[1]) == len(digits)
    assert len(made.test[1]) == round(0.2 * len(digits))
    assert replace(made, seed=3).sampled(1) == [0, 1, 2]
