"""What the example's README prints leads to a report, in a shell, as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flower_processes import Flower
from page_commands import code_blocks
from scripts import ROOT

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

PAGE = "examples/flower/README.md"


def test_the_first_commands_lead_to_a_report(flower: Flower, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    scripts = tmp_path / "bin"
    scripts.mkdir()
    (scripts / "keyhole").write_text(f'#!/bin/sh\nexec {sys.executable} -m keyhole "$@"\n')
    (scripts / "keyhole").chmod(0o755)
    path = f"{scripts}{os.pathsep}{flower.environment['PATH']}"
    blocks = re.split(r"\n\n", code_blocks(PAGE)[0])
    steps = [block for block in blocks if not re.match(r"python3 -m venv|xdg-open", block)]
    assert len(steps) == 2
    for step in steps:
        done = subprocess.run(
            ["bash", "-euc", step],
            cwd=tmp_path,
            env={**flower.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert "none: broken by patch-lstsq (naive): 2 of 2 images read" in done.stdout
    assert (tmp_path / "runs" / "flower" / "report.html").is_file()
