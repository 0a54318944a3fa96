"""Our own results ship with the package: a study is shown wherever one is."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from keyhole_studies import STUDIES, load_study
from keyhole_studies.result_files import SHIPPED

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_a_study_is_shown_outside_the_repository(keyhole, tmp_path, name):
    code, out, err = keyhole("study", name, "--show")
    assert code == 0
    assert len(out.splitlines()) > 3
    assert "the results that ship with keyhole" in err
    code, out, _ = keyhole("study", name, "--show", "--json")
    assert code == 0
    assert json.loads(out)["rows"]
    assert not list(tmp_path.iterdir())


def test_results_of_ones_own_come_first(keyhole, tmp_path):
    name = load_study("dia").experiments[0].name
    own = tmp_path / "results" / "dia"
    own.mkdir(parents=True)
    shutil.copy(SHIPPED / "dia" / f"{name}.json", own)
    code, out, err = keyhole("study", "dia", "--show", "--json")
    assert (code, err) == (0, "")
    rows = json.loads(out)["rows"]
    assert {row["piece"] for row in rows if row["ours"] is not None} == {name}


def test_nothing_is_run_or_counted_as_done_by_what_ships(keyhole):
    pieces = json.loads(keyhole("study", "dia", "--list", "--json")[1])["pieces"]
    assert not any(piece["begun"] for piece in pieces)


def test_the_wheel_holds_the_results_of_every_study(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in ("src", "results"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    code = "from setuptools import build_meta; build_meta.build_wheel('wheel')"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True)
    (wheel,) = (tmp_path / "wheel").glob("*.whl")
    with ZipFile(wheel) as file:
        cells = {name for name in file.namelist() if name.endswith("/cells.toml")}
        held = {name.partition("keyhole_studies/results/")[2] for name in file.namelist()}
    here = {p.relative_to(ROOT / "results").as_posix() for p in (ROOT / "results").rglob("*.json")}
    assert here <= held
    assert len(cells) == len(STUDIES)
    assert set(STUDIES) <= {name.partition("/")[0] for name in held}
