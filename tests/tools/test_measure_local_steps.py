"""The script that measures attacks on many local steps beside one large step."""

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
    expected = ["one large step (ig)", "sme, images alike", "sme", "epoch-matching"]
    assert [line["attack"] for line in lines] == expected
    assert all(len(line["psnr"]) == 8 for line in lines)
