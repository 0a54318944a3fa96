"""The figures of the CSVAR study."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from keyhole.studies.csvar.figures import by_defense, by_epoch, roc_curves, seen

TRIAL = {
    "epochs": 3,
    "inferences": [
        {"attack": "loss", "attacker": "naive", "auc": 0.75, "roc": [[0, 0], [0.5, 1], [1, 1]]},
        {"attack": "lira", "attacker": "naive", "auc": 0.9, "roc": [[0, 0.5], [1, 1]]},
    ],
}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name in ("overfitting", "membership-csvar"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"piece": name, "trials": [TRIAL]}))
    return tmp_path


def test_lines_say_whose_they_are(results: Path) -> None:
    assert [words for words, _ in by_epoch(results)] == ["3 epochs, AUC 0.75"]
    assert [words for words, _ in by_defense(results)] == [
        "CSVAR, loss (naive), AUC 0.75",
        "CSVAR, lira (naive), AUC 0.90",
    ]
    assert list(by_epoch(results / "nothing")) == []


def test_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    with Image.open(roc_curves(list(by_defense(results)), tmp_path / "roc.png")) as picture:
        assert picture.width > picture.height


def test_what_is_seen_is_drawn(tmp_path: Path) -> None:
    with Image.open(seen(32, tmp_path / "seen.png")) as picture:
        assert picture.width > picture.height
