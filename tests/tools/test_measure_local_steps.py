"""The script that measures `sme` beside one large step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import load_script

script = load_script("tools/measure_local_steps.py")


def test_a_line_for_each_attack(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--iterations", "2", "--victims", "1", "--lr", "0.05", "--models", "quickstart"]
    monkeypatch.setattr("sys.argv", ["measure", "--data-dir", str(data_dir), *options])
    script.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["attack"] for line in lines] == ["one large step (ig)", "sme, images alike", "sme"]
    assert all(len(line["psnr"]) == 8 for line in lines)
