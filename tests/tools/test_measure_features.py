"""The script that measures what the last layer tells of a batch."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import ROOT, load_script


def test_features_and_orders_are_measured(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    script = load_script("tools/measure_features.py")
    out = tmp_path / "features.json"
    options = ["--models", "quickstart", "--orders", "quickstart", "--clients", "1"]
    command = ["measure", "--data-dir", str(data_dir), *options, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    script.main()
    found = json.loads(out.read_text())
    (features,) = found["features"]
    assert features["class_once"]["images"] + features["class_twice"]["images"] == 8
    assert features["class_once"]["worst"] < 1e-3
    assert [each["right"] for each in found["orders"]] == [1, 1]
