from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from keyhole.auditing import audit
from keyhole.auditing.finding import Finding
from keyhole.auditing.results import AuditResult
from keyhole.auditing.store import Store
from keyhole.errors import RunFolderError
from keyhole.report import render


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small audit: one attack on images, one on labels."""
    out = tmp_path_factory.mktemp("audits") / "run"
    audit(model="mlp", data="digits", attacks=["linear", "labels"], victims=2, out=out)
    return out


@pytest.fixture
def found(run: Path) -> dict[str, Any]:
    """What the finding on images says, as JSON."""
    path = next((run / "findings").glob("*linear*.json"))
    values: dict[str, Any] = json.loads(path.read_text())
    return values


def test_what_was_written_is_read(run: Path, found: dict[str, Any]) -> None:
    again = Finding.from_json(found).to_json()
    assert json.loads(json.dumps(again)) == found
    assert len(Store.existing(run).findings()) == 2


def test_older_findings_do_not_say_whether_they_read_images(found: dict[str, Any]) -> None:
    del found["reads_images"]
    assert Finding.from_json(found).reads_images
    assert not Finding.from_json({**found, "attack": "labels"}).reads_images


def change(path: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Puts ``value`` at a place such as ``metrics.read.mean``."""

    def apply(values: dict[str, Any]) -> None:
        *above, last = path.split(".")
        for part in above:
            values = values[part]
        values[last] = value

    return apply


def rename(old: str, new: str) -> Callable[[dict[str, Any]], None]:
    def apply(values: dict[str, Any]) -> None:
        values[new] = values.pop(old)

    return apply


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (change("metrics.read.mean", 0.0), "metrics.read.mean: 0 is not 1"),
        (change("metrics.read.worst", 0.0), "metrics.read.worst"),
        (change("metrics.read.low", -3.0), "metrics.read: its interval"),
        (change("metrics.ssim.high", 7.0), "metrics.ssim: its interval"),
        (change("metrics.read.per_image", [0.0]), "metrics.read.mean|more images than others"),
        (change("metrics.read.per_image", []), "metrics.read: it has no values"),
        (change("metrics.read.per_image", [1.0, 0.5]), "metrics.read: each value is 0 or 1"),
        (change("metrics.ssim.per_image", [1.0, 40.0]), "metrics.ssim: a value is out of range"),
        (change("metrics.read.mean", "1"), "metrics.read.mean: input should be a valid number"),
        (change("metrics.read", None), "metrics.read: "),
        (change("metrics.read", {}), "metrics.read.mean: "),
        (change("metrics.luck", {}), "metrics.luck"),
        (change("metrics", []), "metrics: "),
        (lambda v: v["metrics"].pop("ssim"), "read comes with ssim"),
        (lambda v: rename("ssim", "luck")(v["metrics"]), "'luck' is not a metric"),
        (change("key", "../../plan"), "key: .*cannot name a file"),
        (change("attacker", "kind"), "attacker: 'kind' is none of naive"),
        (change("victims", 0), "victims"),
        (change("victims", True), "victims: "),
        (change("seconds", -1.0), "seconds"),
        (change("defense", {"name": "none"}), "parameters: field required"),
        (change("defense.name", 3), "name: input should be a valid string"),
        (change("knowledge", {}), "labels: field required"),
        (change("recipe.batch_size", 0), "batch_size"),
        (change("recipe.gallery", None), "gallery"),
        (change("recipe.image_size", "8x8"), "image_size"),
        (change("notes", "one"), "notes"),
        (change("notes", [1]), "notes.0"),
        (change("confidence", [None, 1.0]), "confidence.0"),
        (change("loss_curves", [[[1]]]), "loss_curves.0.0"),
        (change("baselines", {"noise": {"ssim": "x"}}), "baselines.noise.ssim"),
        (change("surplus", 1), "surplus"),
        (lambda v: v.pop("metrics"), "metrics: field required"),
    ],
)
def test_what_no_audit_writes_is_refused_in_one_line(
    found: dict[str, Any], spoil: Callable[[dict[str, Any]], object], words: str
) -> None:
    spoilt = copy.deepcopy(found)
    spoil(spoilt)
    with pytest.raises(RunFolderError, match=words) as raised:
        Finding.from_json(spoilt, source="a.json")
    assert str(raised.value).startswith("a.json is not as an audit writes it (")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [None, 3, "text", [], [1], {}])
def test_what_is_no_finding_is_refused(value: object) -> None:
    with pytest.raises(RunFolderError, match="not as an audit writes it"):
        Finding.from_json(value)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("plan.json", [], "holds no JSON object"),
        ("summary.json", 3, "holds no JSON object"),
        ("summary.json", {"skipped": [{"attack": 3}]}, "attack: "),
        ("summary.json", {"skipped": {}}, "valid array"),
        ("summary.json", {"notes": [None]}, "0: input should be a valid string"),
    ],
)
def test_files_of_a_run_folder_that_say_something_else_are_named(
    run: Path, tmp_path: Path, name: str, value: object, words: str
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    (tmp_path / "copy" / name).write_text(json.dumps(value))
    with pytest.raises(RunFolderError, match=rf"{name} is not as an audit writes it.*{words}"):
        AuditResult.load(tmp_path / "copy")


@pytest.mark.parametrize(
    "change",
    [
        {"seen": torch.zeros(2, 1, 8, 8)},
        {"seen": torch.zeros(2, 8, 8, dtype=torch.uint8)},
        {"seen": torch.zeros(2, 5, 8, 8, dtype=torch.uint8)},
        {"seen": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)},
        {"seen": torch.zeros(1, 1, 8, 8, dtype=torch.uint8)},
        {"film.0": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)},
        {"surplus": torch.zeros(1)},
    ],
    ids=["floats", "no channels", "five channels", "none", "fewer", "no times", "surplus"],
)
def test_pictures_that_no_audit_keeps_are_refused(
    run: Path, tmp_path: Path, change: dict[str, torch.Tensor]
) -> None:
    shutil.copytree(run, tmp_path / "copy")
    path = next((tmp_path / "copy" / "pictures").glob("*linear*"))
    tensors = {**load_file(path), **change}
    path.unlink()
    save_file(tensors, path)
    with pytest.raises(RunFolderError, match=r"safetensors is not as an audit writes it"):
        render(AuditResult.load(tmp_path / "copy"), title="Audit")


def test_a_finding_under_another_name_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "copy")
    path = next((tmp_path / "copy" / "findings").glob("*linear*.json"))
    path.rename(path.with_name("other.json"))
    with pytest.raises(RunFolderError, match=r"other\.json is the finding"):
        AuditResult.load(tmp_path / "copy")
