"""The shipped table of measurements holds what the repository's results say."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.measured import read_shipped
from keyhole.auditing.measurement import Measurement
from scripts import ROOT, load_script

TOOL = load_script("tools/measured_table.py")


def undated(measured: Measurement) -> Measurement:
    """Without the day, which only a repository with its whole history knows."""
    return dataclasses.replace(measured, date="")


@pytest.fixture(scope="module")
def measured() -> list[Measurement]:
    found: list[Measurement] = TOOL.measure_results(ROOT / "results")
    return found


def test_the_shipped_table_is_that_of_the_results(measured: list[Measurement]) -> None:
    made = [undated(each) for each in measured]
    shipped = [undated(each) for each in read_shipped()]
    assert made == shipped, "run tools/measured_table.py src/keyhole/auditing/measured.json"


def test_every_measurement_names_a_file_that_is_there(measured: list[Measurement]) -> None:
    assert all((ROOT / each.source).is_file() for each in measured)
    assert all(each.date for each in read_shipped())


def test_a_cell_gives_what_its_worst_attacker_read() -> None:
    shipped = {(m.source, m.server): m for m in read_shipped()}
    cell = shipped["results/tip/small-cifar10-tip.json", "honest"]
    rows = json.loads((ROOT / cell.source).read_text())["rows"]
    worst = max(sum(row["metrics"]["read"]["per_image"]) for row in rows.values())
    assert (cell.read, cell.images, cell.by) == (worst, 32, "ig (adaptive)")
    assert cell.regime.model.endswith("shallow_convnet")


def test_results_of_audits_beside_the_studies_count_too(tmp_path: Path) -> None:
    stage = Stage(data="digits", attacks=("linear",), victims=1)
    result = run_plan(Plan(stage=(stage,)))
    result.save(tmp_path / "results" / "mine.json")
    [found] = TOOL.measure_results(tmp_path / "results")
    assert (found.label, found.read, found.source) == ("none", 1, "results/mine.json")
    out = tmp_path / "table.json"
    assert TOOL.main([str(out), "--results", str(tmp_path / "results")]) == 0
    assert [Measurement.from_json(each) for each in json.loads(out.read_text())] == [found]
