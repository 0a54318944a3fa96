"""The pieces of the field for a GPU name all of its cells, the most telling ones first."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from keyhole_studies import load_study
from scripts import ROOT

SCRIPT = ROOT / "tools" / "field_gpu.sh"
PIECES = 9


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A program in Python's place that says what it was given, one word a line."""
    said = tmp_path / "python"
    said.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n', encoding="utf-8")
    said.chmod(0o755)
    return said


def run(piece: int, python: Path) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(SCRIPT), str(piece), "out", str(python)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_pieces_leave_no_cell_out(python: Path) -> None:
    study = load_study("field")
    named: set[str] = set()
    for piece in range(1, PIECES + 1):
        words = run(piece, python).stdout.splitlines()
        assert words[0] == "tools/run_cells.py"
        assert float(words[words.index("--minutes") + 1]) < 9
        assert words[words.index("--options") + 1] == "--device cuda"
        patterns = [word.removeprefix("field:") for word in words if word.startswith("field:")]
        found = {each.name for each in study.choose(patterns)}
        assert found - named, f"piece {piece} has nothing of its own"
        named |= found
    assert named == {each.name for each in study.experiments}


def test_another_piece_is_refused(python: Path) -> None:
    refused = run(PIECES + 1, python)
    assert refused.returncode == 2
    assert refused.stderr == f"piece: name 1 to 9, got {PIECES + 1}\n"
