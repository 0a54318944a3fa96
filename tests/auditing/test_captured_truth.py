from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captures import audited, change_json, ssims
from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.results import AuditResult
from keyhole.auditing.store import Store
from keyhole.data import SOURCES
from keyhole.errors import KeyholeError
from keyhole.federation import TrainingPlan, train

Keyhole = Callable[..., tuple[int, str, str]]
MODEL = ("--model", "vit-small", "--data", "digits")


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
    assert set(pictures) == {"seen", "seen.at"}
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
    assert AuditResult.load(tmp_path / "audit").verdicts == result.verdicts


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


def painted_folder(root: Path) -> str:
    """Two classes of four pictures each, in colour."""
    rng = np.random.default_rng(0)
    for number in range(8):
        file = root / ("cat" if number % 2 else "dog") / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(file)
    return str(root)


TRUTHS = {
    "none": None,
    "empty": {"clients": {}},
    "of nobody here": {"clients": {"700": [0], "701": [1]}},
    "of too many images": {"clients": {"0": [0, 1], "1": [2, 3, 4]}},
    "of no images": {"clients": {"0": [], "1": []}},
}


def without_truth(tmp_path: Path, data: str, data_dir: Path | None = None) -> None:
    """Audits two captured clients under every kind of truth that gives none of their images."""
    where = None if data_dir is None else str(data_dir)
    size = {"data": data, "image_size": "8"}
    plan = TrainingPlan(
        model="mlp", clients=2, images=1, steps=1, batch_size=1, rounds=1, together="no", **size
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen", data_dir=where)
    for words, truth in TRUTHS.items():
        (tmp_path / "seen" / "truth.json").unlink(missing_ok=True)
        if truth is not None:
            (tmp_path / "seen" / "truth.json").write_text(json.dumps(truth))
        stage = Stage(model="mlp", captured=tmp_path / "seen", attacks=("linear",), **size)
        result = run_plan(Plan(stage=(stage,)), data_dir=where)
        assert [v.status for v in result.verdicts] == ["not scored"], words
        assert all(sure > 0.99 for f in result.findings for sure in f.confidence), words


@pytest.mark.parametrize("data", ["digits", "faces", "photos", "folder"])
def test_every_data_set_is_audited_without_truth(tmp_path: Path, data: str) -> None:
    without_truth(tmp_path, painted_folder(tmp_path / "own") if data == "folder" else data)


LARGE = ("mnist", "tiny-imagenet", "imagenet-sample")
OF_FILES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in LARGE else [])
    for name, source in SOURCES.items()
    if source.where
]


@pytest.mark.parametrize("data", OF_FILES)
def test_every_data_set_of_files_is_audited_without_truth(
    tmp_path: Path, data: str, data_dir: Path
) -> None:
    without_truth(tmp_path, data, data_dir)
