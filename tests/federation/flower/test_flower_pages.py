"""Every command of the pages on Flower runs in a shell as it is printed, but on free ports."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from flower_processes import Flower, free_port, wait_for
from page_commands import code_blocks
from scripts import ROOT

pytest.importorskip("flwr")
pytestmark = pytest.mark.flower

NOT_HERE = ("python3 -m venv", "xdg-open")
"""What installs, and what opens a window."""
STAYS = re.compile(r"^(?:\w+=\S+ )*flower-super(?:link|node) ")
PROGRAM = re.compile(r"^(?:\w+=\S+ )*(?:flwr|flower-\w+|keyhole|python3?|patch|xdg-open) ")
PORT = re.compile(r"(127\.0\.0\.1:|--port )(\d+)")


def shell_lines(block: str) -> list[str]:
    """The commands of a block, each in one line; a tree of files has none."""
    lines = [" ".join(line.split()) for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if PROGRAM.match(line) and not line.startswith(NOT_HERE)]


@dataclass
class Reader:
    """One who types what a page says, in the folder of the repository."""

    flower: Flower
    folder: Path
    ports: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "examples").symlink_to(ROOT / "examples")
        scripts = self.folder / "bin"
        scripts.mkdir()
        (scripts / "keyhole").write_text(f'#!/bin/sh\nexec {sys.executable} -m keyhole "$@"\n')
        (scripts / "keyhole").chmod(0o755)
        path = f"{scripts}{os.pathsep}{self.flower.environment['PATH']}"
        self.flower.environment["PATH"] = path

    def with_free_ports(self, text: str) -> str:
        """The text with a free port in place of each that it names, the same every time."""

        def replaced(found: re.Match[str]) -> str:
            return f"{found[1]}{self.ports.setdefault(found[2], free_port())}"

        return PORT.sub(replaced, text)

    def type(self, line: str) -> str:
        """What a command prints; a process that stays is left running."""
        line = self.with_free_ports(line)
        if STAYS.match(line):
            self.flower.start("bash", "-c", f"exec env {line}")
            if "flower-superlink" in line:
                wait_for(int(shlex.split(line)[-1]))
            return ""
        done = subprocess.run(
            ["bash", "-euc", line],
            cwd=self.folder,
            env=self.flower.environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        if line.startswith(("flwr run", "FLWR")):
            self.check_last_run(["here"] if " here " in line else [])
        return done.stdout

    def check_last_run(self, where: list[str]) -> None:
        """``flwr run`` itself ends well where the app crashed."""
        runs = json.loads(self.flower.call("flwr", "list", *where, "--format", "json"))["runs"]
        assert {run["status"] for run in runs} == {"finished:completed"}

    def type_all(self, block: str) -> str:
        """Types a block; returns what its last command printed."""
        lines = shell_lines(block)
        assert lines
        return [self.type(line) for line in lines][-1]

    def name_link(self, block: str) -> None:
        """Writes a page's TOML to where Flower looks for its SuperLinks."""
        (self.flower.home / "config.toml").write_text(self.with_free_ports(block))


@pytest.fixture
def reader(flower: Flower, tmp_path: Path) -> Reader:
    return Reader(flower, tmp_path / "repository")


EXAMPLE = "examples/flower/README.md"


def test_the_first_commands_lead_to_a_report(reader: Reader) -> None:
    printed = reader.type_all(code_blocks(EXAMPLE)[0])
    assert "none: broken by patch-lstsq (naive): 2 of 2 images read" in printed
    assert (reader.folder / "runs" / "flower" / "report.html").is_file()


def test_other_settings_are_taken(reader: Reader) -> None:
    reader.type_all(code_blocks(EXAMPLE)[1])
    assert (reader.folder / "captured-gaussian" / "truth.json").is_file()


def test_the_deployment_of_the_page_is_captured(reader: Reader) -> None:
    blocks = [block for block in code_blocks(EXAMPLE) if shell_lines(block)]
    reader.name_link(code_blocks(EXAMPLE, "toml")[0])
    processes, run = blocks[2:4]
    reader.type_all(processes)
    reader.type_all(run)
    assert (reader.folder / "captured-deployed" / "truth.json").is_file()


def test_the_mean_of_secure_aggregation_is_read(reader: Reader) -> None:
    reader.type_all(code_blocks(EXAMPLE)[-1].replace("--out", "--attack ig --iterations 5 --out"))
    assert (reader.folder / "runs" / "secagg" / "report.html").is_file()


LYING = "docs/malicious_flower.md"


def test_the_simulation_under_a_lying_server_is_read(reader: Reader) -> None:
    printed = reader.type_all(code_blocks(LYING)[0])
    assert "trap-weights (naive): 4 of 4 images read" in printed


def test_the_deployment_under_a_lying_server_is_read(reader: Reader) -> None:
    """The page prints the first of three SuperNodes, and says how the others are numbered."""
    reader.name_link(code_blocks(EXAMPLE, "toml")[0].replace("8000", "41300"))
    link, node, run, audit = shell_lines(code_blocks(LYING)[1])
    reader.type(link)
    for number in range(3):
        own = node.replace("41310", f"4131{number}")
        reader.type(own.replace("partition-id=0", f"partition-id={number}"))
    reader.type(run)
    assert "loki (naive): 6 of 6 images read" in reader.type(audit)


def test_a_command_that_fails_is_noticed(reader: Reader) -> None:
    with pytest.raises(AssertionError, match="no capture"):
        reader.type("keyhole audit --captured nowhere --model mlp --data digits")
