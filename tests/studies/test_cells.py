"""Studies in TOML: cells, what they share, and what is wrong with them in one line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from keyhole.errors import BadValue, KeyholeError
from keyhole_studies import STUDIES, load_study
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import Study
from keyhole_studies.cells import parse_study

HEAD = 'name = "mine"\ntitle = "T"\npaper = "P"\n'
SHARED = """
[shared.mlp]
kind = "audit"
figure = "2"
stage = { model = "mlp", victims = 8 }

[shared.few]
stage.victims = 2
"""


def parse(cells: str) -> Study:
    return parse_study(f"{HEAD}{SHARED}\n[cells]\n{cells}\n")


def test_a_cell_has_its_own_fields_and_those_of_its_shared_tables() -> None:
    study = parse('a = { like = ["mlp"] }\nb = { like = ["mlp", "few"], stage.steps = 3 }')
    a, b = study.experiments
    assert isinstance(a, AuditExperiment)
    assert isinstance(b, AuditExperiment)
    assert (a.name, a.figure, a.stage.model, a.stage.victims) == ("a", "2", "mlp", 8)
    assert (b.name, b.stage.model, b.stage.victims, b.stage.steps) == ("b", "mlp", 2, 3)


def test_later_tables_replace_earlier_ones_and_a_cells_own_fields_all() -> None:
    study = parse('a = { like = ["few", "mlp"] }\nb = { like = ["mlp", "few"], stage.victims = 1 }')
    assert [e.stage.victims for e in study.experiments] == [8, 1]  # type: ignore[attr-defined]


def test_cells_stand_in_the_order_of_the_file() -> None:
    study = parse('z = { like = ["mlp"] }\na = { like = ["mlp"] }')
    assert [experiment.name for experiment in study.experiments] == ["z", "a"]


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ('a = { like = ["mpl"] }', "unknown shared table of cell a 'mpl': did you mean mlp?"),
        ('a = { kind = "audti" }', "unknown kind of cell a of study mine 'audti'"),
        ("a = { figure = '2' }", "unknown kind of cell a of study mine 'None'"),
        ('a = { like = ["mlp"], stage.victims = 0 }', "cell a of study mine: stage.victims: input"),
        ('a = { like = ["mlp"], stage.victms = 1 }', "cell a of study mine: stage.victms: extra"),
        ('a = { like = ["mlp"], gamma = 1 }', "cell a of study mine: gamma: "),
        ('a = { kind = "audit" }', "cell a of study mine: stage: "),
        ("a = 3", "cells.a"),
        ("a = {", "cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(cells: str, words: str) -> None:
    with pytest.raises(KeyholeError) as raised:
        parse(cells)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_file_with_an_unknown_table_is_refused() -> None:
    with pytest.raises(KeyholeError, match="unknown key of a study's cells 'cell'"):
        parse_study(f"{HEAD}[cell]\n")
    with pytest.raises(BadValue, match="cells"):
        parse_study(HEAD)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_reads_its_own_cells(name: str) -> None:
    study = load_study(name)
    assert study.name == name
    names = [experiment.name for experiment in study.experiments]
    assert len(names) == len(set(names)) > 5


def test_names_of_studies_are_known_without_importing_them() -> None:
    code = "import sys, keyhole_studies; print([n for n in sys.modules if n.startswith(PREFIX)])"
    prefix = "PREFIX = ('keyhole_studies.', 'timm', 'sklearn', 'matplotlib.')\n"
    found = subprocess.run(
        [sys.executable, "-c", prefix + code], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"


def test_the_study_of_contributing_is_one() -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (cells,) = re.findall(r'```toml\n(name = "mine".*?)```', text, re.S)
    (experiment,) = parse_study(cells).experiments
    assert experiment.paper == {"ig": {"ssim": 0.79}}
