"""The script that measures attacks on many local steps beside one large step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import load_script

script = load_script("tools/measure_local_steps.py")


ATTACKS = ["one large step (ig)", "epoch-matching", "decode"]


def test_a_line_for_each_attack(
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    options = ["--iterations", "2", "--victims", "1", "--lr", "0.05", "--models", "quickstart"]
    options += ["--out", str(tmp_path / "lines.json"), "--attacks", *ATTACKS]
    monkeypatch.setattr("sys.argv", ["measure", "--data-dir", str(data_dir), *options])
    script.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["attack"] for line in lines] == ATTACKS
    assert all(len(line["psnr"]) == 8 for line in lines)
    kept = json.loads((tmp_path / "lines.json").read_text())
    assert kept["rows"] == lines
    script.main()
    assert capsys.readouterr().out == ""
