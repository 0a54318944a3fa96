"""The figures of the CSVAR study."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
import torch
from PIL import Image

from keyhole_studies.csvar import STUDY
from keyhole_studies.csvar.figures import (
    draw_drawings,
    draw_roc,
    draw_seen,
    read_drawings,
    read_lines_by_defense,
    read_lines_by_epoch,
)
from keyhole_studies.csvar.generation import save_sheet

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
    assert [words for words, _ in read_lines_by_epoch(STUDY, results)] == ["3 epochs, AUC 0.75"]
    assert [words for words, _ in read_lines_by_defense(STUDY, results)] == [
        "CSVAR, loss (naive), AUC 0.75",
        "CSVAR, lira (naive), AUC 0.90",
    ]
    assert list(read_lines_by_epoch(STUDY, results / "nothing")) == []


def test_drawings_of_a_gan_are_shown_with_their_defense(tmp_path: Path) -> None:
    row = save_sheet(torch.rand(3, 1, 8, 8), tmp_path / "row.png")
    for name in ("gan-mnist-csvar-known", "gan-faces-none"):
        result = {"drawn": base64.b64encode(row.read_bytes()).decode()}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    found = list(read_drawings(STUDY, tmp_path))
    assert [words for words, _ in found] == ["MNIST, CSVAR, known", "faces, vanilla"]
    assert found[0][1].shape == (8, 24, 3)
    with Image.open(draw_drawings(found, tmp_path / "drawn.png")) as picture:
        assert picture.width > picture.height
    assert list(read_drawings(STUDY, tmp_path / "nothing")) == []


def test_curves_are_drawn(results: Path, tmp_path: Path) -> None:
    lines = list(read_lines_by_defense(STUDY, results))
    with Image.open(draw_roc(lines, tmp_path / "roc.png")) as picture:
        assert picture.width > picture.height


def test_what_is_seen_is_drawn(tmp_path: Path) -> None:
    with Image.open(draw_seen(32, tmp_path / "seen.png")) as picture:
        assert picture.width > picture.height
