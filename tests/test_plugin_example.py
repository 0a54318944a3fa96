"""A stranger's package, installed: its attack, its defense and its command are Keyhole's, too."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import keyhole
from keyhole import plugins, report
from keyhole.attacks import ATTACKS
from keyhole.defenses import DEFENSES

EXAMPLE = Path(__file__).parent / "plugin_example"
SOURCE = Path(keyhole.__file__).parents[1]
CASE = ("--model", "mlp", "--data", "digits", "--victims", "2")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the package."""
    pytest.importorskip("setuptools")
    source, site = tmp_path_factory.mktemp("source") / "copy", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)  # building leaves its traces there
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    offline = ("--no-deps", "--no-index", "--no-build-isolation", "--target", str(site))
    subprocess.run([*pip, *offline, str(source)], check=True, capture_output=True)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package can be imported and is found by its entry points."""
    monkeypatch.syspath_prepend(site)
    plugins.find_entry_points.cache_clear()
    yield
    sys.modules.pop("keyhole_example", None)
    plugins.find_entry_points.cache_clear()


def test_the_package_is_of_two_files() -> None:
    files = [path.name for path in EXAMPLE.rglob("*") if "__pycache__" not in path.parts]
    assert sorted(files) == ["keyhole_example.py", "pyproject.toml"]


def test_a_fresh_process_audits_by_the_names_that_the_package_declares(
    site: Path, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "keyhole", "audit", *CASE, "--out", "run", "--json")
    parts = ("--attack", "rank-one", "--defense", "none,shrink(p=0.3)")
    path = os.pathsep.join([str(site), str(SOURCE)])
    done = subprocess.run(
        [*command, *parts],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = json.loads(done.stdout)["findings"]
    assert (first["attack"], first["attacker"]) == ("rank-one", "naive")
    assert second["defense"] == {"name": "shrink", "parameters": {"p": 0.3}}
    assert second["attacker"] == "paper"
    assert first["metrics"]["read"]["mean"] == second["metrics"]["read"]["mean"] == 1
    assert "shrink(p=0.3)" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("installed")
def test_the_command_is_listed_and_runs(keyhole: Run) -> None:
    code, out, _ = keyhole("--help")
    assert code == 0
    assert "Show what the example's attack sees through the example's defense." in " ".join(
        out.split()
    )
    code, out, _ = keyhole("try-shrink", "--p", "0.9")
    assert (code, out) == (0, "shrink(p=0.9): broken by rank-one (paper): 2 of 2 images read\n")


@pytest.mark.usefixtures("installed")
def test_a_plan_names_its_parts_and_the_report_shows_them(keyhole: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        "[[stage]]\nmodel = 'mlp'\ndata = 'digits'\nvictims = 1\n"
        "attacks = ['rank-one', 'linear']\ndefenses = ['shrink(p=0.9)']\n"
    )
    code, out, _ = keyhole("audit", "plan.toml", "--out", "run")
    assert code == 0
    assert "shrink(p=0.9): broken by" in out
    code, again, _ = keyhole("report", "run")
    assert (code, again) == (0, out)
    assert "rank-one" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.usefixtures("installed")
def test_objects_go_by_the_names_that_the_package_declares(tmp_path: Path) -> None:
    parts = importlib.import_module("keyhole_example")
    result = keyhole.audit(
        model="mlp",
        data="digits",
        attacks=[parts.RankOne()],
        defenses=[parts.Shrink(p=0.2)],
        victims=1,
        out=tmp_path / "run",
    )
    assert result.findings[0].attack == "rank-one"
    assert str(parts.Shrink(p=0.2)) == "shrink(p=0.2)"
    assert DEFENSES.parse("shrink(p=0.2)") == parts.Shrink(p=0.2)
    assert ATTACKS.parse("keyhole_example:RankOne(layer=1)") == parts.RankOne(layer=1)
    assert "shrink(p=0.2)" in Path(report.write(result, title="Objects")).read_text()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--defense", "shrink(p=2)"), "defense shrink: p must be at least 0 and below 1, got 2"),
        (("--defense", "shrink(q=2)"), "unknown parameter of defense shrink 'q'"),
        (("--attack", "rank-one(layer=3)"), "linear layer 3 does not see all pixels"),
        (("--attack", "rank-on"), "did you mean rank-one"),
    ],
)
def test_a_mistake_is_one_line(keyhole: Run, arguments: tuple[str, ...], words: str) -> None:
    code, _, err = keyhole("audit", *CASE, *arguments)
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


@pytest.mark.usefixtures("installed")
def test_the_list_says_where_its_parts_are_from(keyhole: Run) -> None:
    words = "Shortens the update to `1 - p` of its length. (from keyhole-example 1.0)"
    assert words in " ".join(keyhole("list", "defenses")[1].split())
    listed = json.loads(keyhole("list", "--json")[1])
    attack = next(entry for entry in listed["attacks"] if entry["name"] == "rank-one")
    assert (attack["from"], attack["parameters"]) == ("keyhole-example 1.0", {"layer": 0})
    one = keyhole("list", "attacks", "rank-one")[1]
    assert "From: keyhole-example 1.0" in one
    assert "layer=0" in one
    assert "a whole number" in one
    elsewhere = keyhole("list", "attacks", "keyhole_example:RankOne")[1]
    assert elsewhere.startswith("keyhole_example:RankOne: Reads one image")


def test_its_run_folder_opens_without_the_package(
    installed: None, keyhole: Run, monkeypatch: pytest.MonkeyPatch, site: Path
) -> None:
    parts = ("--attack", "rank-one", "--defense", "shrink(p=0.3)", "--out", "run")
    _, shown, _ = keyhole("audit", *CASE, *parts)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(site)])
    monkeypatch.setitem(sys.modules, "keyhole_example", None)  # type: ignore[arg-type]
    plugins.find_entry_points.cache_clear()
    code, out, err = keyhole("report", "run")
    assert (code, out, err) == (0, shown, "")
    code, _, err = keyhole("audit", *CASE, "--attack", "rank-one")
    assert code == 2
    assert "unknown attack 'rank-one'" in err
