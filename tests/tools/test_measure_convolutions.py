"""The script that measures how exactly a deep convolution tells its inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import load_script


def test_inputs_are_exact_with_and_without_batch_statistics(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = load_script("tools/measure_convolutions.py")
    out = tmp_path / "convolutions.json"
    command = ["measure", "--data-dir", str(data_dir), "--batches", "2", "--clients", "1"]
    monkeypatch.setattr(sys, "argv", [*command, "--out", str(out)])
    script.main()
    rows = json.loads(out.read_text())["rows"]
    assert [row["mode"] for row in rows] == ["eval", "train"]
    for row in rows:
        assert row["layer"]["images"] == row["earlier"]["images"] == 2
        assert row["layer"]["names"] != row["earlier"]["names"]
        assert row["layer"]["worst"] < 1e-2
        assert row["earlier"]["worst"] < 5e-2
