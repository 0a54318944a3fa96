"""The wheel that is released works by itself: commands, templates and weights are in it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from keyhole.cli.app import COMMANDS
from keyhole.version import __version__
from scripts import ROOT

MISSING = [name for name in ("build", "twine") if find_spec(name) is None]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} is missing: pip install 'keyhole[dev]'"
    ),
]
NOT_SHIPPED = {"__pycache__", "keyhole.egg-info"}
Run = Callable[..., str]


def run(*command: str | Path, at: Path) -> str:
    """What a command prints; away from this repository's packages."""
    hidden = {"PYTHONPATH", "PYTHONHOME", "KEYHOLE_DATA"}
    environment = {k: v for k, v in os.environ.items() if k not in hidden}
    done = subprocess.run(
        list(map(str, command)),
        cwd=at,
        env={**environment, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def package_files(source: Path) -> Iterator[Path]:
    """The files below the packages, and below the results that one of them links to."""
    for folder, inner, files in os.walk(source, followlinks=True):
        inner[:] = set(inner) - NOT_SHIPPED
        yield from (Path(folder, file).relative_to(source) for file in files)


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source archive and wheel; the wheel is built from the archive."""
    copy = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    for name in ("src", "results"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=lambda *_: NOT_SHIPPED)
    run(sys.executable, "-m", "build", "--no-isolation", at=copy)
    return copy / "dist"


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def keyhole(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Runs ``keyhole`` of an environment with the wheel, and the dependencies of this one."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    (packages,) = (folder / "env").glob("lib/python*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    pip = (sys.executable, "-m", "pip", "--python", python)
    run(*pip, "install", "--no-deps", "--no-index", "--ignore-installed", wheel, at=folder)
    where = run(python, "-c", "import keyhole; print(keyhole.__file__)", at=folder)
    assert Path(where.strip()).is_relative_to(packages)
    return lambda *arguments: run(python.with_name("keyhole"), *arguments, at=folder)


def test_both_archives_pass_the_index_check(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [file.name for file in files] == [
        f"keyhole-{__version__}-py3-none-any.whl",
        f"keyhole-{__version__}.tar.gz",
    ]
    run(sys.executable, "-m", "twine", "check", "--strict", *files, at=dist)


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    ours = {file.as_posix() for file in package_files(ROOT / "src")}
    assert {"keyhole/report/page.html.j2", "keyhole/auditing/measured.json"} <= ours
    assert any(name.startswith("keyhole_studies/results/") for name in ours)
    assert ours - inside == set()
    assert {name for name in inside - ours if ".dist-info/" not in name} == set()


def test_the_installed_command_knows_its_version_and_parts(keyhole: Run) -> None:
    assert keyhole("--version") == f"keyhole {__version__}\n"
    listed = keyhole("list")
    assert all(name in listed for name in ("gaussian", "patch-lstsq", "vit-small", "digits"))


def test_every_installed_command_tells_what_it_takes(keyhole: Run) -> None:
    for command in (*COMMANDS, "study"):
        name = command if isinstance(command, str) else command.name
        assert "--help" in keyhole(name, "--help"), name


def test_the_installed_package_audits_and_writes_its_page(keyhole: Run) -> None:
    asked = ("--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")
    result = json.loads(keyhole("audit", *asked, "--out", "run", "--json"))
    assert "broken by linear (naive): 1 of 1 images read" in json.dumps(result["verdicts"])
    assert Path(result["run"]).name == "run"
    keyhole("report", "run", "--latex", "run.tex")
    keyhole("leaderboard", "--out", "site")
    keyhole("study", "dia", "--show")
