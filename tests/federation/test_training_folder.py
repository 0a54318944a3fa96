from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, Defense
from keyhole.errors import DoesNotFit, KeyholeError, RunFolderError
from keyhole.federation import (
    Round,
    TrainingPlan,
    train,
)
from keyhole.lock import FolderLock
from keyhole.update import Update, read_safetensors
from trainings import PLAN, SMALL, assert_same, timeless, weights_of

FOLDER = importlib.import_module("keyhole.federation.training_folder")
RUN = importlib.import_module("keyhole.federation.run")
CHOOSING = importlib.import_module("keyhole.federation.choosing")
digits = load("digits")


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
    real, written = FOLDER.write_tensors, []

    def third_fails(*values: Any) -> Path:
        if len(written) == 2:
            raise Killed
        written.append(1)
        return real(*values)

    monkeypatch.setattr(FOLDER, "write_tensors", third_fails)
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


def test_a_plan_of_before_it_had_more_settings_is_continued(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(Killed):
        train(PLAN, out=tmp_path, watchers=[kill_at(1)])
    path = tmp_path / "plan.json"
    older = {k: v for k, v in json.loads(path.read_text()).items() if k not in ("mean", "std")}
    path.write_text(json.dumps(older))
    assert train(PLAN, out=tmp_path).resumed_after == 1
    assert_same(weights_of(tmp_path), weights_of(whole))


def test_more_rounds_may_be_asked_for_later(tmp_path: Path, whole: Path) -> None:
    train(PLAN.model_copy(update={"rounds": 1}), out=tmp_path)
    result = train(PLAN, out=tmp_path)
    assert (result.resumed_after, len(result.rounds)) == (1, 3)
    assert_same(weights_of(tmp_path), weights_of(whole))
    assert record_of(tmp_path) == record_of(whole)


@pytest.mark.parametrize("fresh", [False, True])
def test_the_folder_of_an_audit_is_never_replaced(tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "plan.json").write_text('{"title": "Audit", "stage": []}')
    with pytest.raises(RunFolderError, match="no training: choose another --out"):
        train(PLAN, out=tmp_path, fresh=fresh)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json"]


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
    monkeypatch.setattr(CHOOSING, "vmap_is_faster", lambda model, members: True)
    with pytest.raises(Killed):
        train(plan, out=tmp_path / "run", watchers=[kill_at(1)])
    monkeypatch.setattr(CHOOSING, "vmap_is_faster", lambda model, members: False)
    train(plan, out=tmp_path / "run")
    noted = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (noted["together"], noted["clients_trained"]) == ("auto", "together")
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


def wait_for_rounds(process: subprocess.Popen[bytes], record: Path, count: int) -> None:
    deadline = time.monotonic() + 300
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


def test_a_plan_of_another_kind_is_told(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("[]")
    with pytest.raises(RunFolderError):
        train(PLAN, out=tmp_path)


def test_a_training_holds_its_folders_and_gives_them_back(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"rounds": 1})
    for name in ("run", "seen"):
        (tmp_path / name).mkdir()
        lock = FolderLock(tmp_path / name)
        with pytest.raises(RunFolderError, match=f"another keyhole is at work in .*{name}"):
            train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
        lock.release()
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    assert not list(tmp_path.glob("*/.*"))


def test_a_plan_is_written_first_and_outlives_what_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(PLAN, out=tmp_path)
    seen: list[bool] = []
    real = FOLDER.remove_tree
    monkeypatch.setattr(
        FOLDER, "remove_tree", lambda p: (real(p), seen.append((tmp_path / "plan.json").is_file()))
    )
    train(PLAN.model_copy(update={"rounds": 1, "seed": 5}), out=tmp_path, fresh=True)
    assert seen == [True, True]


def test_parts_of_a_training_without_its_plan_are_replaced_only_when_asked(tmp_path: Path) -> None:
    plan = PLAN.model_copy(update={"rounds": 1})
    train(plan, out=tmp_path)
    (tmp_path / "plan.json").unlink()
    with pytest.raises(RunFolderError, match=r"parts of a training but no plan\.json.*--fresh"):
        train(plan, out=tmp_path)
    assert train(plan, out=tmp_path, fresh=True).resumed_after == 0


@pytest.mark.parametrize("fresh", [False, True])
def test_a_checkpoint_of_somebody_else_is_left_alone(tmp_path: Path, fresh: bool) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "checkpoint.safetensors")
    with pytest.raises(RunFolderError, match="holds other files"):
        train(PLAN, out=tmp_path, fresh=fresh)
    assert (tmp_path / "checkpoint.safetensors").is_file()


@pytest.mark.parametrize("damage", ["no facts", "another model", "no safetensors"])
def test_a_checkpoint_that_cannot_be_used_is_told_in_words(tmp_path: Path, damage: str) -> None:
    plan = PLAN.model_copy(update={"rounds": 1})
    train(plan, out=tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    weights, header = read_safetensors(path)
    if damage == "no safetensors":
        path.write_bytes(b"half")
    else:
        kept = weights if damage == "no facts" else {"w": torch.zeros(2)}
        save_file(kept, path, {} if damage == "no facts" else header)
    with pytest.raises(RunFolderError, match=r"is not the checkpoint of this training .*--fresh"):
        train(plan, out=tmp_path)
    train(plan, out=tmp_path, fresh=True)
