"""The script that measures what uploaded batch statistics add."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts import load_script

script = load_script("tools/measure_batch_statistics.py")


def test_a_line_for_each_use(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--iterations", "4", "--victims", "1", "--uses", "ignored", "both"]
    monkeypatch.setattr("sys.argv", ["measure", "--data-dir", str(data_dir), *options])
    script.main()
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["use"] for line in lines] == ["ignored", "both"]
    assert lines[0]["psnr"] != lines[1]["psnr"]
