"""Keyhole on the path alone, not installed: no entry points tell of the commands beside it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from keyhole.cli import lazy_command
from keyhole.cli.app import make_app

CALL = """
import importlib.metadata, sys
importlib.metadata.entry_points = lambda **group: importlib.metadata.EntryPoints()
from keyhole.cli import main
sys.argv = ["keyhole", *sys.argv[1:]]
try:
    main()
finally:
    print("loaded:", *({"keyhole_studies", "torch"} & set(sys.modules)), file=sys.stderr)
"""


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", CALL, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_study_command_is_listed_and_nothing_of_it_is_imported() -> None:
    done = call("--help")
    assert done.returncode == 0
    assert "study Reproduce a paper's tables, " in " ".join(done.stdout.split())
    assert done.stderr == "loaded:\n"


def test_the_study_command_runs() -> None:
    done = call("study", "field", "--list")
    assert done.returncode == 0, done.stderr
    assert "none-off-quickstart-honest" in done.stdout


def test_an_entry_point_comes_first_and_what_is_gone_is_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = lazy_command.LazyCommand("study", "somewhere:else")
    monkeypatch.setattr("keyhole.cli.app.plugin_commands", lambda: [own])
    assert offered()["study"] is own
    monkeypatch.setattr("keyhole.cli.app.plugin_commands", list)
    monkeypatch.setattr(lazy_command, "find_entry_points", lambda group: ())
    assert "study" in offered()
    monkeypatch.setattr(lazy_command, "BESIDE", tmp_path)
    assert "study" not in offered()
    (tmp_path / "keyhole_more").mkdir()
    (tmp_path / "keyhole_more" / "command.py").write_text("def shout(): ...\ndef _own(): ...\n")
    assert [each.name for each in lazy_command.commands_beside()] == ["shout"]


def offered() -> dict[str, click.Command]:
    group = make_app()
    assert isinstance(group, click.Group)
    return dict(group.commands)
