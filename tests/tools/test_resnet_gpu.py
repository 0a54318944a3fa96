"""The script that tries many ways of reading ResNet-18's clients."""

from __future__ import annotations

import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from keyhole.attacks import ATTACKS
from scripts import ROOT

SCRIPT = ROOT / "tools" / "resnet_gpu.sh"


@pytest.fixture
def keyhole(tmp_path: Path) -> Path:
    """A command that prints what it was asked, and writes down that it was called."""
    command = tmp_path / "keyhole"
    command.write_text('#!/bin/sh\necho "$@" >> called\necho "$*"\n')
    command.chmod(0o755)
    return command


@pytest.mark.parametrize("line", ["batch", "trained", "statistics"])
def test_every_way_is_an_audit_whose_result_is_kept(
    tmp_path: Path, keyhole: Path, line: str
) -> None:
    given = {**os.environ, "OUT": str(tmp_path), "VICTIMS": "1", "ITERATIONS": "2", "DEVICE": "cpu"}
    command = ["sh", str(SCRIPT), line, str(keyhole)]
    for _ in range(2):  # the second time nothing is left to do
        subprocess.run(command, cwd=tmp_path, env=given, capture_output=True, check=True)
    found = sorted((tmp_path / "results" / "resnet").glob(f"{line}-*.json"))
    calls = (tmp_path / "called").read_text().splitlines()
    assert sum(call.startswith("audit") for call in calls) == len(found) >= 12
    for file in found:
        asked = file.read_text()
        attack = asked.partition("--attack ")[2].partition(" --iterations 2")[0]
        assert ATTACKS.parse(attack)
        assert "--device cpu" in asked
        assert "--victims 1" in asked
    with tarfile.open(tmp_path / "resnet.tar.gz") as packed:
        assert len([n for n in packed.getnames() if n.endswith(".json")]) == len(found)


def test_a_way_that_fails_leaves_the_others(tmp_path: Path) -> None:
    command = tmp_path / "keyhole"
    command.write_text('#!/bin/sh\ncase "$*" in *"--attack ig("*) exit 1;; esac\necho "{}"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["sh", str(SCRIPT), "batch", str(command)], cwd=tmp_path, capture_output=True, check=True
    )
    assert b"batch-ig: cut off" in done.stderr
    names = {file.stem for file in (tmp_path / "results" / "resnet").iterdir()}
    assert "batch-ig" not in names
    assert "batch-head-1" in names


def test_an_unknown_line_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", str(SCRIPT), "all"], cwd=tmp_path, capture_output=True, check=False
    )
    assert done.returncode == 2
    assert b"name batch, trained or statistics" in done.stderr
