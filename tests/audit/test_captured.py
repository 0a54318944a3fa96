from __future__ import annotations

import base64
import importlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from keyhole.audit import AuditResult, Plan, Stage, run_plan
from keyhole.audit.captured import alike, named
from keyhole.audit.run import rebuild
from keyhole.audit.store import Store
from keyhole.data import load
from keyhole.errors import KeyholeError, RunFolderError
from keyhole.federation import (
    TrainingPlan,
    assemble,
    client_generator,
    train,
)
from keyhole.models import build
from keyhole.seeds import generator

RUN = importlib.import_module("keyhole.audit.run")

digits = load("digits")

Keyhole = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captured rounds of three clients with an image each."""
    folder = tmp_path_factory.mktemp("trained")
    plan = TrainingPlan(
        model="vit-small", clients=3, images=1, steps=1, batch_size=1, rounds=2, together="no"
    )
    train(plan, out=folder / "run", capture=folder / "seen")
    return folder / "seen"


@pytest.fixture
def seen(trained: Path, tmp_path: Path) -> Path:
    """A copy of the captured folder that a test may damage; tensors are replaced, not written."""
    return Path(shutil.copytree(trained, tmp_path / "seen", copy_function=linked))


def linked(source: str, target: str) -> None:
    """Large files are shared among copies."""
    (os.link if source.endswith(".safetensors") else shutil.copy)(source, target)


def replaced(path: Path, tensors: dict[str, Tensor]) -> None:
    path.unlink()
    save_file(tensors, path)


def audited(seen: Path, out: Path | None = None, **values: Any) -> AuditResult:
    stage = Stage(**{"model": "vit-small", "data": "digits", "captured": seen, **values})
    return run_plan(Plan(stage=(stage,)), out=out)


def ssims(result: AuditResult, attack: str = "patch-lstsq") -> list[float]:
    return [
        v
        for f in result.findings
        if f.attack == attack and "ssim" in f.metrics
        for v in f.metrics["ssim"].per_image
    ]


def client_file(seen: Path, node: int = 0, number: int = 1) -> Path:
    return seen / f"round-{number:04d}" / f"client-{node}.safetensors"


def change_file(path: Path, change: Callable[[str, Tensor], Tensor]) -> None:
    replaced(path, {name: change(name, tensor) for name, tensor in load_file(path).items()})


def change_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    found = json.loads(path.read_text())
    change(found)
    path.write_text(json.dumps(found))


def manifest(seen: Path, number: int = 1) -> Path:
    return seen / f"round-{number:04d}" / "manifest.json"


MODEL = ("--model", "vit-small", "--data", "digits")
ONE_IMAGE = ("--images", "1", "--steps", "1", "--batch-size", "1", "--clients", "3")


def test_what_a_training_captured_is_read_by_an_audit(keyhole: Keyhole) -> None:
    options = ("--rounds", "1", "--capture", "seen", "--together", "no", "--json")
    assert keyhole("train", *MODEL, *ONE_IMAGE, *options)[0] == 0
    code, out, err = keyhole("audit", *MODEL, "--captured", "seen", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["notes"] == []
    (verdict,) = found["verdicts"]
    assert verdict["status"] == "broken"
    assert verdict["words"] == "broken by patch-lstsq (naive): 3 of 3 images read"
    finding = next(f for f in found["findings"] if f["attack"] == "patch-lstsq")
    assert finding["data"] == "digits, captured in round 1, 3 clients of 1 image"
    assert len(finding["metrics"]["ssim"]["per_image"]) == 3
    assert min(finding["metrics"]["ssim"]["per_image"]) >= 0.99
    truth = json.loads(Path("seen/truth.json").read_text())["clients"]
    assert finding["recipe"]["indices"] == [truth["0"], truth["1"], truth["2"]]
    assert (finding["recipe"]["lr"], finding["recipe"]["steps"]) == (0.03, 1)


def test_an_audit_of_a_capture_says_where_it_comes_from(seen: Path, keyhole: Keyhole) -> None:
    code, out, _ = keyhole("audit", *MODEL, "--captured", str(seen), "--out", "audit")
    assert code == 0
    assert "captured in round 1" in " ".join(out.split())
    assert "captured weights of round 1" in Path("audit/report.html").read_text()


def test_without_truth_nothing_is_scored_but_everything_is_shown(
    seen: Path, keyhole: Keyhole, tmp_path: Path
) -> None:
    known = audited(seen, tmp_path / "known")
    (seen / "truth.json").unlink()
    command = ("audit", *MODEL, "--captured", str(seen), "--out", "audit")
    found = json.loads(keyhole(*command, "--json")[1])
    (verdict,) = found["verdicts"]
    assert verdict["status"] == "not scored"
    assert "patch-lstsq (naive) shows 3 image(s) and is convinced of 3" in verdict["words"]
    assert all(f["metrics"] == {} for f in found["findings"])
    assert all(f["baselines"] == {} for f in found["findings"])
    store = Store.existing(tmp_path / "audit")
    key = next(f["key"] for f in found["findings"] if f["attack"] == "patch-lstsq")
    pictures = store.pictures(key)
    assert set(pictures) == {"seen"}
    assert known.store is not None
    truth = known.store.pictures(next(f.key for f in known.findings if f.attack == "patch-lstsq"))
    assert (pictures["seen"].int() - truth["truth"].int()).abs().max() <= 1
    page = (tmp_path / "audit" / "report.html").read_text()
    assert shown_pixels(page)[0] == pictures["seen"][0].flatten().tolist()
    assert "its own confidence: 100%" in page
    assert 'alt="original"' not in page
    (tmp_path / "audit" / "report.html").unlink()
    code, out, _ = keyhole("report", "audit")
    assert code == 0
    assert "not scored" in out
    assert len(shown_pixels((tmp_path / "audit" / "report.html").read_text())) >= 3


def shown_pixels(page: str) -> list[list[int]]:
    """The grey values of every picture on a page."""
    found = re.findall(r'src="data:image/png;base64,([^"]+)"', page)
    images = [Image.open(io.BytesIO(base64.b64decode(text))) for text in found]
    return [np.asarray(image.convert("L")).flatten().tolist() for image in images]


def test_iterative_attacks_without_truth_are_shown_as_well(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="lenet", clients=2, images=1, steps=1, batch_size=1, rounds=1, together="no"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    (tmp_path / "seen" / "truth.json").unlink()
    result = audited(tmp_path / "seen", tmp_path / "audit", model="lenet", iterations=3)
    (verdict,) = result.verdicts
    assert verdict.status == "not scored"
    ig = next(f for f in result.findings if f.attack == "ig")
    assert ig.attack_parameters["labels"] == "inferred"
    assert ig.knowledge["labels"] is False
    assert result.store is not None
    assert {"seen", "film.0", "film.1.at"} <= set(result.store.pictures(ig.key))
    assert rebuild(Store.existing(tmp_path / "audit")).verdicts == result.verdicts


@pytest.mark.parametrize("attack", ["wiig", "linear"])
def test_attacks_that_do_not_apply_are_not_tried(seen: Path, attack: str) -> None:
    result = audited(seen, attacks=("patch-lstsq", attack))
    assert {f.attack for f in result.findings} == {"patch-lstsq"}
    assert [s.attack.partition("(")[0] for s in result.skipped] == [attack]


def test_an_attack_that_applies_to_nothing_is_told(seen: Path) -> None:
    with pytest.raises(KeyholeError, match="linear"):
        audited(seen, attacks=("linear",))


def test_another_model_is_told_in_a_line(seen: Path, keyhole: Keyhole, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    command = ("audit", "--model", "mlp", "--data", "digits", "--captured", str(seen))
    code, out, err = keyhole(*command)
    assert (code, out) == (2, "")
    assert err.startswith("keyhole: nothing in ")
    assert "another model's weights" in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rounds", "7"), "round '7' was not captured: there are 1, 2, or say all"),
        (("--rounds", "first"), "'first' was not captured"),
        (("--rounds", ""), "was not captured"),
        (("--clients", "8"), "client 8 did not answer in round 1"),
        (("--truth", "nowhere.json"), "nowhere.json cannot be read"),
        (("--truth", "torn.json"), "torn.json cannot be read"),
        (("--truth", "odd.json"), "odd.json is no truth"),
        (("--attack", "patch-lstq"), "did you mean patch-lstsq"),
        (("--captured", "empty"), "holds no captured round"),
        (("--captured", "nowhere"), "is not a folder"),
        (("--data", "faces"), "--image-size 24x24"),
        (("--defense", "gausian"), "did you mean gaussian"),
    ],
)
def test_bad_input_gets_one_clear_line(
    seen: Path, keyhole: Keyhole, tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "torn.json").write_text('{"clie')
    (tmp_path / "odd.json").write_text('{"clients": [1, 2]}')
    code, out, err = keyhole("audit", *MODEL, "--captured", str(seen), *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_truncated_client_is_left_out_and_the_others_are_attacked(seen: Path) -> None:
    path = client_file(seen, 1)
    whole = path.read_bytes()
    path.unlink()
    path.write_bytes(whole[:5000])
    result = audited(seen)
    (note,) = result.notes
    assert note.startswith("client 1 of round 1 is left out: ")
    assert "client-1.safetensors" in note
    assert len(ssims(result)) == 2
    assert min(ssims(result)) > 0.99


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _, t: torch.zeros_like(t), "all zeros"),
        (lambda _, t: torch.full_like(t, torch.nan), "NaN or infinite"),
        (lambda n, t: t * torch.inf if n == "head.bias" else t, "NaN or infinite"),
        (lambda n, t: t[:4] if n == "head.bias" else t, "belongs to another model"),
    ],
    ids=["zeros", "nan", "infinite", "shape"],
)
def test_an_update_that_tells_nothing_is_noted(
    seen: Path, change: Callable[[str, Tensor], Tensor], words: str
) -> None:
    change_file(client_file(seen, 2), change)
    result = audited(seen)
    (note,) = result.notes
    assert note.startswith("client 2 of round 1 is left out: ")
    assert words in note
    assert "\n" not in note
    assert len(ssims(result)) == 2


def test_an_update_of_strange_tensors_is_noted(seen: Path) -> None:
    replaced(client_file(seen), {"stranger": torch.ones(3)})
    (note,) = audited(seen).notes
    assert "client 0 of round 1 is left out" in note
    assert "'stranger'" in note


def test_an_update_of_some_tensors_is_noted_and_the_others_are_attacked(seen: Path) -> None:
    path = client_file(seen)
    replaced(path, {n: t for n, t in load_file(path).items() if n != "pos_embed"})
    result = audited(seen)
    assert len(ssims(result)) == 2
    assert any("client 0" in note for note in result.notes)


def test_if_no_client_is_left_the_first_reason_is_told(seen: Path) -> None:
    for node in range(3):
        change_file(client_file(seen, node), lambda _, t: torch.zeros_like(t))
    with pytest.raises(RunFolderError, match="can be attacked: client 0 of round 1 is left out"):
        audited(seen)


def test_a_round_that_nobody_answered_is_told(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m.update(clients=[]))
    with pytest.raises(KeyholeError):
        audited(seen)


def test_clients_that_sent_nothing_are_named(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m.update(lost={"4": "out of memory"}))
    assert audited(seen).notes == ("client 4 sent nothing in round 1: out of memory",)


def test_notes_are_on_the_page_and_in_the_report(seen: Path, keyhole: Keyhole) -> None:
    change_json(manifest(seen), lambda m: m.update(lost={"4": "out of <memory>"}))
    keyhole("audit", *MODEL, "--captured", str(seen), "--out", "audit")
    assert "client 4 sent nothing in round 1: out of &lt;memory&gt;" in (
        Path("audit/report.html").read_text()
    )
    found = json.loads(keyhole("report", "audit", "--json")[1])
    assert found["notes"] == ["client 4 sent nothing in round 1: out of <memory>"]


@pytest.mark.parametrize(
    ("rounds", "expected"), [(None, [1]), ("2", [2]), ("all", [1, 2]), ("2, 1", [2, 1])]
)
def test_rounds_are_chosen(seen: Path, rounds: str | None, expected: list[int]) -> None:
    result = audited(seen, attacks=("patch-lstsq",), rounds=rounds)
    assert [int(f.recipe["rounds"]) for f in result.findings] == expected
    assert [f.recipe["checkpoint_epoch"] for f in result.findings] == [n - 1 for n in expected]
    assert min(ssims(result)) > 0.99
    assert len(result.verdicts) == len(expected)


def test_a_round_named_twice_is_attacked_once(seen: Path) -> None:
    assert len(audited(seen, attacks=("patch-lstsq",), rounds="1,1").findings) == 1


def test_clients_are_chosen(seen: Path) -> None:
    result = audited(seen, attacks=("patch-lstsq",), nodes="1,5")
    assert result.notes == ("client 5 did not answer in round 1",)
    (finding,) = result.findings
    truth = json.loads((seen / "truth.json").read_text())["clients"]
    assert finding.recipe["indices"] == [truth["1"]]
    assert finding.data == "digits, captured in round 1, client 1 of 1 image"
    assert ssims(result)[0] > 0.99


def test_no_more_clients_than_asked_for_are_attacked(seen: Path) -> None:
    assert len(ssims(audited(seen, victims=2))) == 2


def test_clients_go_by_their_partition_where_they_tell_it(seen: Path) -> None:
    def rename(found: dict[str, Any]) -> None:
        for client in found["clients"]:
            client["metrics"] = {"partition-id": int(client["node"])}
            client["node"] = f"98765{client['node']}"

    change_json(manifest(seen), rename)
    result = audited(seen, nodes="2")
    assert ssims(result)[0] > 0.99
    assert result.findings[0].data.startswith("digits, captured in round 1, client 2")


def test_tensors_without_names_are_matched_by_their_order(seen: Path) -> None:
    own = list(build("vit-small", classes=10, channels=1, image_size=8).state_dict())
    assert len(own) > 10  # so that "10" must come after "9"
    for path in (seen / "round-0001").glob("*.safetensors"):
        held = load_file(path)
        replaced(path, {str(place): held[name] for place, name in enumerate(own)})
    result = audited(seen)
    assert result.notes == ()
    assert min(ssims(result)) > 0.99


def test_only_a_whole_list_of_tensors_gets_the_models_names() -> None:
    model = nn.Linear(3, 2)
    listed = {"1": torch.zeros(2), "0": torch.zeros(2, 3)}
    assert {n: tuple(t.shape) for n, t in named(listed, model).items()} == {
        "weight": (2, 3),
        "bias": (2,),
    }
    for other in ({"0": torch.zeros(2, 3)}, {"weight": torch.zeros(2, 3), "0": torch.zeros(2)}):
        assert named(other, model) is other


def test_the_users_own_truth_is_scored_by(seen: Path, tmp_path: Path) -> None:
    clients = json.loads((seen / "truth.json").read_text())["clients"]
    (seen / "truth.json").unlink()
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"clients": clients}))
    result = audited(seen, truth=path)
    assert result.verdicts[0].status == "broken"
    assert min(ssims(result)) > 0.99


def test_the_users_truth_wins_over_the_captured_one(seen: Path, tmp_path: Path) -> None:
    path = tmp_path / "truth.json"
    path.write_text(json.dumps({"data": "digits", "clients": {"0": [0], "1": [1], "2": [2]}}))
    assert max(ssims(audited(seen, truth=path))) < 0.9


def test_a_truth_about_other_data_scores_nothing(seen: Path) -> None:
    change_json(seen / "truth.json", lambda t: t.update(data="faces"))
    result = audited(seen)
    assert [v.status for v in result.verdicts] == ["not scored"]
    assert result.notes == ("the truth is about 'faces', not 'digits': nothing is scored",)


def test_clients_with_and_without_truth_are_judged_apart(seen: Path) -> None:
    change_json(seen / "truth.json", lambda t: t["clients"].pop("0"))
    result = audited(seen)
    assert [v.status for v in result.verdicts] == ["not scored", "broken"]
    assert len(ssims(result)) == 2


def test_as_many_clients_with_as_without_truth_are_judged_apart(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small", clients=4, images=1, steps=1, batch_size=1, rounds=1, together="no"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    for node in ("0", "1"):
        change_json(tmp_path / "seen" / "truth.json", lambda t, node=node: t["clients"].pop(node))
    result = audited(tmp_path / "seen")
    assert [v.status for v in result.verdicts] == ["not scored", "broken"]
    assert "not scored" not in result.verdicts[-1].words


def test_a_truth_of_another_size_scores_nothing(seen: Path) -> None:
    change_json(seen / "truth.json", lambda t: t["clients"].update({"0": [1, 2]}))
    result = audited(seen, nodes="0")
    assert [v.status for v in result.verdicts] == ["not scored"]


def test_a_truth_that_is_not_used_is_noted(seen: Path) -> None:
    change_json(seen / "truth.json", lambda t: t["clients"].update({"0": [1, 2]}))
    assert any("truth" in note for note in audited(seen, nodes="0").notes)


@pytest.mark.parametrize(
    "text", ["[1]", "3", '{"clients": {"0": [99999]}}', '{"clients": {"0": [-1]}}']
)
def test_a_truth_that_cannot_be_is_told_in_a_line(seen: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "truth.json"
    path.write_text(text)
    with pytest.raises(KeyholeError, match=r"truth\.json") as raised:
        audited(seen, truth=path)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["clients"][0].update(metrics=None),
        lambda m: m["clients"][0].update(examples=float("nan")),
        lambda m: m["config"].update({"batch-size": float("nan")}),
        lambda m: m["config"].update({"local-steps": float("inf")}),
    ],
    ids=["metrics", "examples", "batch size", "steps"],
)
def test_odd_values_in_a_manifest_do_not_end_an_audit(
    seen: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    change_json(manifest(seen), change)
    assert min(ssims(audited(seen))) > 0.99


def test_the_same_command_continues(
    seen: Path, keyhole: Keyhole, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("audit", *MODEL, "--captured", str(seen), "--rounds", "all", "--json")
    first = json.loads(keyhole(*command)[1])
    monkeypatch.setattr(RUN, "play_scene", lambda *_: pytest.fail("attacked again"))
    assert json.loads(keyhole(*command)[1]) == first
    assert len(first["findings"]) == 4


def test_an_audit_stopped_between_rounds_attacks_only_what_is_left(
    seen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacked: list[str] = []
    real = RUN.play_scene

    def play(scene: Any, *values: Any) -> Any:
        if attacked:
            raise KeyboardInterrupt
        attacked.append(scene.cast.stage.rounds)
        return real(scene, *values)

    monkeypatch.setattr(RUN, "play_scene", play)
    with pytest.raises(KeyboardInterrupt):
        audited(seen, tmp_path / "audit", rounds="all")
    attacked.clear()
    result = audited(seen, tmp_path / "audit", rounds="all")
    assert attacked == ["2"]
    assert len(ssims(result)) == 6


def test_a_capture_that_changed_is_attacked_anew(seen: Path, tmp_path: Path) -> None:
    audited(seen, tmp_path / "audit")
    change_file(client_file(seen), lambda _, t: torch.randn_like(t))
    assert min(ssims(audited(seen, tmp_path / "audit"))) < 0.9


def test_a_training_by_users_is_audited_by_the_right_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for user in ("ada", "bob", "eve"):
        for kind in ("cat", "dog", "eel"):
            for number in range(4):
                file = tmp_path / "people" / user / kind / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(file)
    people = str(tmp_path / "people")
    plan = TrainingPlan(
        model="vit-small",
        data=people,
        partition="by-user",
        clients=3,
        images=1,
        steps=1,
        batch_size=1,
        rounds=1,
        together="no",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    assert min(ssims(audited(tmp_path / "seen", data=people))) > 0.99


def test_several_images_a_client(tmp_path: Path) -> None:
    plan = TrainingPlan(
        clients=2, images=2, steps=1, batch_size=2, rounds=1, together="no", defense="none"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    result = audited(tmp_path / "seen", model="mlp")
    linear = next(f for f in result.findings if f.attack == "linear")
    assert linear.data.endswith("2 clients of 2 images")
    assert len(linear.metrics["ssim"].per_image) == 4
    assert linear.recipe["batch_size"] == 2


def test_batch_statistics_of_captured_clients_are_spoken_of(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="timm:resnet10t", clients=1, images=2, steps=1, batch_size=2, rounds=1, together="no"
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    told = audited(tmp_path / "seen", model="timm:resnet10t", attacks=("labels",))
    assert any("each batch's own statistics" in note for f in told.findings for note in f.notes)


def test_the_defense_is_taken_from_the_messages(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        clients=2,
        images=1,
        steps=1,
        batch_size=1,
        rounds=1,
        together="no",
        defense="gaussian(sigma=10.0)",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    (verdict,) = audited(tmp_path / "seen", attacks=("patch-lstsq",)).verdicts
    assert verdict.defense["name"] == "gaussian"
    assert verdict.defense["parameters"]["sigma"] == 10.0
    assert verdict.status == "not broken"


def test_a_defense_that_is_not_known_is_said(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m["config"].update(defense="homemade(strength=3)"))
    result = audited(seen, attacks=("patch-lstsq",))
    said = (*result.notes, *result.findings[0].notes)
    assert any("homemade" in note for note in said)


def test_clients_of_one_recipe_are_attacked_as_one(seen: Path) -> None:
    def other_rate(found: dict[str, Any]) -> None:
        found["clients"][1]["metrics"] = {"lr": 0.5}

    change_json(manifest(seen), other_rate)
    result = audited(seen, attacks=("patch-lstsq",))
    assert [f.recipe["lr"] for f in result.findings] == [0.03, 0.5]
    assert [f.recipe["nodes"] for f in result.findings] == ["0,2", "1"]
    assert alike([]) == []


def test_as_many_clients_of_another_recipe_are_judged_apart(seen: Path) -> None:
    change_json(manifest(seen), lambda m: m["clients"][1].update(metrics={"lr": 0.5}))
    change_json(manifest(seen), lambda m: m["clients"].append({**m["clients"][1], "node": "3"}))
    change_json(seen / "truth.json", lambda t: t["clients"].update({"3": t["clients"]["1"]}))
    result = audited(seen, attacks=("patch-lstsq",))
    assert [f.recipe["lr"] for f in result.findings] == [0.03, 0.5]
    assert len(result.verdicts) == 2


def test_steps_in_an_unknown_order_are_read_by_trying_every_order(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small",
        clients=4,
        images=2,
        epochs=1,
        batch_size=1,
        momentum=0,
        rounds=1,
        together="no",
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    federation = assemble(plan, data_dir=None)

    def first_drawn(client: int) -> int:
        draw = client_generator(0, client, 1)
        seed = int(torch.randint(2**62, (), generator=draw))
        return int(torch.randperm(2, generator=generator(seed, "batches"))[0])

    def labels(client: int) -> list[int]:
        return digits.labels[list(federation.shares[client])].tolist()

    turned = [c for c in range(4) if first_drawn(c) == 1 and len(set(labels(c))) == 2]
    result = audited(tmp_path / "seen", attacks=("ig",), iterations=150, nodes=str(turned[0]))
    (finding,) = result.findings
    assert finding.attack_parameters["trials"] == 2
    assert any("all 2 orders" in note for note in finding.notes)
    assert min(ssims(result, "ig")) > 0.9
