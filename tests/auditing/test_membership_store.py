"""A membership run in a folder: taken up after a kill, to the same bits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from keyhole.attacks.membership import TargetTraining, target_training
from keyhole.auditing import MembershipPlan, MembershipResult, infer_membership, membership_store
from keyhole.auditing.membership_store import MembershipStore, read_membership_result
from keyhole.data import load
from keyhole.errors import RunFolderError
from keyhole.lock import FolderLock
from keyhole.metrics import membership as metrics
from keyhole.settings import make_settings

SMALL: dict[str, Any] = {
    "model": "mlp",
    "members": 20,
    "public": 40,
    "epochs": 2,
    "batch_size": 10,
    "attacks": "loss,shadow,lira",
    "shadows": 4,
    "defenses": "none,dropout",
    "augment": True,
}


def plan(**values: Any) -> MembershipPlan:
    return make_settings(MembershipPlan, {**SMALL, **values})


def facts(found: MembershipResult | Path) -> Any:
    """All that was found, less the time it took and where it lies."""
    made = found.to_json() if isinstance(found, MembershipResult) else json.loads(found.read_text())

    def timeless(value: Any) -> Any:
        if isinstance(value, dict):
            kept = {k: v for k, v in value.items() if k not in ("seconds", "run")}
            return {k: timeless(v) for k, v in kept.items()}
        return [timeless(v) for v in value] if isinstance(value, list | tuple) else value

    return json.loads(json.dumps(timeless(made)))


class Killed(BaseException):
    """Stands for a kill: no error handling of ours may see to it."""


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int | None]:
    """Counts what a run writes, and kills it before write number ``until``."""
    seen: dict[str, int | None] = {"done": 0, "until": None}
    for name in ("write_json", "write_tensors"):
        write = getattr(membership_store, name)

        def counted(*values: Any, write: Any = write) -> Any:
            if seen["done"] == seen["until"]:
                raise Killed
            seen["done"] = (seen["done"] or 0) + 1
            return write(*values)

        monkeypatch.setattr(membership_store, name, counted)
    return seen


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "RESAMPLES", 20)


def check_kills(settings: MembershipPlan, folder: Path, writes: dict[str, Any], every: int) -> None:
    """Kills a run before every so-manieth of its writes, and lets it go on each time."""
    whole = facts(infer_membership(settings))
    infer_membership(settings, out=folder / "whole")
    assert facts(folder / "whole" / "result.json") == whole
    for until in reversed(range(writes["done"] - 1, -1, -every)):
        killed = folder / str(until)
        writes.update(done=0, until=until)
        with pytest.raises(Killed):
            infer_membership(settings, out=killed)
        assert not (killed / "result.json").exists()
        writes.update(until=None)
        assert facts(infer_membership(settings, out=killed)) == whole
        assert facts(killed / "result.json") == whole
        assert not list((killed / "models").iterdir())


def test_a_run_killed_before_a_write_goes_on_to_the_same_bits(
    tmp_path: Path, writes: dict[str, Any]
) -> None:
    check_kills(plan(attacks="loss,lira"), tmp_path, writes, every=3)


@pytest.mark.slow
def test_a_run_killed_before_any_write_goes_on_to_the_same_bits(
    tmp_path: Path, writes: dict[str, Any]
) -> None:
    check_kills(plan(), tmp_path, writes, every=1)


def test_models_that_train_one_by_one_are_kept_one_by_one(
    tmp_path: Path, writes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target_training, "SMALL_BATCH", 0)
    settings = plan(attacks="lira", defenses="dropout", clients=2)
    check_kills(settings, tmp_path, writes, every=5)
    assert writes["done"] >= 8


def test_what_was_trained_is_not_trained_again(
    tmp_path: Path, writes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[int] = []
    train = TargetTraining.train_stacked

    def count(training: TargetTraining, federations: Any) -> None:
        trained.append(len(federations))
        train(training, federations)

    monkeypatch.setattr(TargetTraining, "train_stacked", count)
    settings = plan(defenses="none")
    writes.update(until=3)  # after the plan, the model under attack and the shadow models
    with pytest.raises(Killed):
        infer_membership(settings, out=tmp_path)
    writes.update(until=None)
    assert trained == [4, 4]
    infer_membership(settings, out=tmp_path)
    assert trained == [4, 4, 4]
    infer_membership(settings, out=tmp_path)
    assert trained == [4, 4, 4]


def test_trials_on_other_images_are_not_taken_for_ours(tmp_path: Path) -> None:
    settings, digits = plan(attacks="loss", defenses="none"), load("digits")
    negative = replace(digits, pixels=lambda some: 255 - digits.pixels(some))
    first = facts(infer_membership(settings, out=tmp_path))
    second = facts(infer_membership(settings, out=tmp_path, data=negative))
    assert second == facts(infer_membership(settings, data=negative))
    assert second != first


def test_a_folder_holds_one_plan_and_fresh_replaces_it(tmp_path: Path) -> None:
    settings = plan(attacks="loss", defenses="none", epochs=1)
    infer_membership(settings, out=tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    other = settings.model_copy(update={"seed": 1})
    with pytest.raises(RunFolderError, match=r"holds another membership run.*--fresh"):
        infer_membership(other, out=tmp_path)
    assert facts(infer_membership(other, out=tmp_path, fresh=True)) == facts(
        infer_membership(other)
    )
    assert (tmp_path / "notes.txt").read_text() == "mine"
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(RunFolderError, match="cannot be read"):
        infer_membership(other, out=tmp_path)
    infer_membership(other, out=tmp_path, fresh=True)


@pytest.mark.parametrize(
    ("name", "words"),
    [("models/my.safetensors", "holds other files"), ("plan.json", "holds another run")],
)
@pytest.mark.parametrize("fresh", [False, True])
def test_a_users_files_are_left_alone(tmp_path: Path, name: str, words: str, fresh: bool) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text('{"title": "mine"}')
    with pytest.raises(RunFolderError, match=words):
        infer_membership(plan(), out=tmp_path, fresh=fresh)
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [Path(name).name]


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    held = FolderLock(tmp_path)
    with pytest.raises(RunFolderError, match="another keyhole is at work in"):
        infer_membership(plan(), out=tmp_path)
    held.release()


def test_a_start_that_failed_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"lower --lr|learning rate"):
        infer_membership(plan(attacks="loss", lr=1e20, optimiser="sgd"), out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["[]", '{"inferences": []}', '{"inferences": [{"rates": 1}]}'])
def test_a_trial_that_is_none_is_told_in_words(tmp_path: Path, text: str) -> None:
    store = MembershipStore(tmp_path, {})
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "0-a.json").write_text(text)
    with pytest.raises(RunFolderError, match=r"is damaged .*--fresh"):
        store.read_trial(0, "a")


def test_a_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = plan(attacks="loss,lira", epochs=1)
    result = infer_membership(settings, out=tmp_path)
    assert read_membership_result(tmp_path) == result
    path = tmp_path / "result.json"
    found = json.loads(path.read_text())
    found["trials"][0]["inferences"][0]["auc"] = "high"
    path.write_text(json.dumps(found))
    with pytest.raises(RunFolderError, match=r"is damaged \(trials.0.inferences.0.auc: "):
        read_membership_result(tmp_path)
    path.unlink()
    with pytest.raises(RunFolderError, match="holds no result yet"):
        read_membership_result(tmp_path)


def test_a_broken_model_file_is_told_in_words(tmp_path: Path) -> None:
    store = MembershipStore(tmp_path, {})
    store.model_path("a").parent.mkdir()
    store.model_path("a").write_bytes(b"nothing")
    with pytest.raises(RunFolderError, match="start over with --fresh"):
        store.load("a")


@pytest.mark.slow
def test_kill_9_between_models_loses_nothing(tmp_path: Path) -> None:
    options = {"model": "mlp", "epochs": "60", "members": "60", "shadows": "4"}
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [sys.executable, "-m", "keyhole", "membership", *given, "--json", "--out"]
    whole = json.loads(subprocess.check_output([*command, str(tmp_path / "whole")]))
    folder, killed = tmp_path / "killed", 0
    for kept in (1, 2, 3):
        run = subprocess.Popen([*command, str(folder)], stdout=subprocess.DEVNULL)
        while run.poll() is None and len(list(folder.glob("models/*.safetensors"))) < kept:
            time.sleep(0.002)
        if run.poll() is None:
            os.kill(run.pid, signal.SIGKILL)
            killed += 1
        run.wait()
    assert killed
    resumed = json.loads(subprocess.check_output([*command, str(folder)]))
    for each in (whole, resumed):
        (tmp_path / "one.json").write_text(json.dumps(each))
        each["facts"] = facts(tmp_path / "one.json")
    assert resumed["facts"] == whole["facts"]


def test_models_that_a_kill_left_beside_a_finished_trial_do_not_stay(tmp_path: Path) -> None:
    store = MembershipStore(tmp_path, {"members": 3})
    store.begin(fresh=False)
    store.save("lira-0", {"w": torch.zeros(2)})
    store.conclude({})
    assert not list((tmp_path / "models").iterdir())
