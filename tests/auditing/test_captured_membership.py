from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from captures import change_json
from keyhole.auditing import AuditResult, Plan, Stage, captured_membership, run_plan
from keyhole.auditing.captured_membership import ask_within_audit, infer_captured_membership
from keyhole.errors import KeyholeError
from keyhole.federation import TrainingPlan, train
from scripts import ROOT

Keyhole = Callable[..., tuple[int, str, str]]
OPTIONS: dict[str, Any] = {
    "model": "mlp",
    "data": "digits",
    "clients": 5,
    "images": 20,
    "rounds": 4,
    "epochs": 3,
    "batch_size": 10,
    "lr": 0.05,
    "held_out": 0.8,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("membership") / "cap"
    train(TrainingPlan(**OPTIONS), out=root.parent / "run", capture=root)
    return root


def test_captured_updates_tell_more_than_the_final_models_loss(
    seen: Path, keyhole: Keyhole
) -> None:
    options = ("--captured", str(seen), "--model", "mlp", "--data", "digits", "--json")
    code, out, err = keyhole("membership", *options)
    assert (code, err) == (0, "")
    found = json.loads(out)
    areas = {each["attack"]: each["auc"] for each in found["attacks"]}
    assert set(areas) == {"fedmia", "cosine", "loss"}
    assert areas["fedmia"] > areas["loss"] + 0.05
    assert (found["members"], found["rounds"]) == (100, [1, 2, 3, 4])
    assert [r["limit"] for r in found["attacks"][0]["rates"]] == [0.001, 0.01]
    assert set(found["attacks"][0]["by_client"]) == {"0", "1", "2", "3", "4"}


def test_people_get_a_line_for_each_attack(seen: Path, keyhole: Keyhole) -> None:
    options = ("--captured", str(seen), "--model", "mlp", "--data", "digits", "--attack", "fedmia")
    code, out, _ = keyhole("membership", *options)
    assert code == 0
    assert out.startswith("membership by fedmia: AUC 0.")


def infer(folder: Path, **values: Any) -> Any:
    return infer_captured_membership(folder, model="mlp", data="digits", **values)


def test_a_missing_round_costs_only_itself(seen: Path, tmp_path: Path) -> None:
    shutil.copytree(seen, tmp_path / "cap")
    shutil.rmtree(tmp_path / "cap" / "round-0002")
    found = infer(tmp_path / "cap")
    assert found.rounds == (1, 3, 4)
    assert "round 2 is missing" in found.notes


def test_two_clients_are_too_few_for_fedmia_alone(seen: Path, tmp_path: Path) -> None:
    shutil.copytree(seen, tmp_path / "cap")
    for manifest in (tmp_path / "cap").glob("round-*/manifest.json"):
        change_json(manifest, lambda found: found.update(clients=found["clients"][:2]))
    found = infer(tmp_path / "cap")
    assert {each.attack for each in found.attacks} == {"cosine", "loss"}
    assert any("fedmia needs 3 clients" in note for note in found.notes)


def test_without_a_truth_nobody_can_judge(seen: Path, tmp_path: Path) -> None:
    shutil.copytree(seen, tmp_path / "cap")
    (tmp_path / "cap" / "truth.json").unlink()
    with pytest.raises(KeyholeError, match=r"add truth\.json"):
        infer(tmp_path / "cap")


def test_attacks_that_train_models_cannot_use_updates(seen: Path) -> None:
    with pytest.raises(KeyholeError, match="'lira' cannot use captured updates"):
        infer(seen, attacks=("lira",))


def test_another_model_is_refused_in_one_line(seen: Path) -> None:
    with pytest.raises(KeyholeError, match="nothing in"):
        infer_captured_membership(seen, model="lenet", data="digits")


def test_an_audit_of_the_folder_has_it_as_a_row(
    seen: Path, keyhole: Keyhole, tmp_path: Path
) -> None:
    options = ("--captured", str(seen), "--model", "mlp", "--data", "digits", "--victims", "1")
    named = ("--attack", "linear", "--out", str(tmp_path / "run"))
    code, out, _ = keyhole("audit", *options, *named, "--json")
    assert code == 0
    rows = {each["attack"]: each["auc"] for each in json.loads(out)["membership"]["attacks"]}
    assert rows["fedmia"] > rows["loss"]
    again = AuditResult.load(tmp_path / "run")
    assert again.membership == infer(seen)
    assert "<h2>Who was in it</h2>" in (tmp_path / "run" / "report.html").read_text()
    code, out, _ = keyhole("report", str(tmp_path / "run"))
    assert code == 0
    assert "membership by fedmia: AUC 0." in out


def test_an_audit_leaves_it_out_where_it_would_take_long(
    seen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_membership, "MOST_WORK", 10)
    stage = Stage(model="mlp", data="digits", captured=seen)
    place = torch.device("cpu")
    found, notes = ask_within_audit(stage, data_dir=None, device=place, seed=0)
    assert found is None
    assert "keyhole membership --captured" in notes[0]


def test_a_changed_result_is_refused_in_one_line(seen: Path) -> None:
    values = infer(seen).to_json()
    values["attacks"][0]["auc"] = "high"
    whole = {"findings": [], "membership": values}
    with pytest.raises(KeyholeError, match="its membership is not as an audit writes it"):
        AuditResult.from_json(whole)


def test_an_unknown_optimiser_and_updates_without_buffers_stop_nobody(
    seen: Path, tmp_path: Path
) -> None:
    shutil.copytree(seen, tmp_path / "cap")
    for manifest in (tmp_path / "cap").glob("round-*/manifest.json"):
        change_json(manifest, lambda found: found["config"].update(optimiser="lion"))
    stage = Stage(model="mlp", data="digits", captured=tmp_path / "cap", attacks=("linear",))
    result = run_plan(Plan(stage=(stage.model_copy(update={"victims": 1}),)))
    assert result.membership is not None
    assert {each.attack for each in result.membership.attacks} == {"fedmia", "cosine", "loss"}
    notes = [note for finding in result.findings for note in finding.notes]
    assert any("trained by lion" in note for note in notes)


@pytest.mark.parametrize("name", ["keyhole", "flower"])
def test_of_the_committed_runs_fedmia_tells_more_than_the_final_models_loss(name: str) -> None:
    values = json.loads((ROOT / "results" / "membership" / f"{name}.json").read_text())
    areas = {each["attack"]: each for each in values["attacks"]}
    assert areas["fedmia"]["auc_low"] > areas["loss"]["auc_high"]
    shown = f"{areas['fedmia']['auc']:.3f}".removeprefix("0")
    assert shown in (ROOT / "docs" / "federation.md").read_text()
