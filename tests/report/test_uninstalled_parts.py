"""Run folders made with an attack, a defense and a metric that are not installed here."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from keyhole.auditing import AuditResult, audit, compare_results
from keyhole.errors import RunFolderError
from keyhole.report import print_result, render, write_figures
from keyhole.report.comparison_page import render_comparison

LUCK = {
    "name": "luck",
    "label": "Luck",
    "summary": "how lucky the attacker was",
    "leaks_high": True,
    "low": 0.0,
    "high": 10.0,
    "unit": "",
    "cap": None,
    "digits": 2,
    "percent": False,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("audits") / "run"
    audit(model="mlp", data="digits", defenses=["gaussian"], attacks=["linear"], victims=2, out=out)
    return out


@pytest.fixture
def foreign(made: Path, tmp_path: Path) -> Path:
    """The same folder as if strangers' parts had made it."""
    folder = tmp_path / "run"
    shutil.copytree(made, folder)
    for path in (folder / "findings").glob("*.json"):
        found = json.loads(path.read_text())
        found["attack"] = "my_parts:Oracle"
        found["attack_parameters"] = {"strength": 2}
        found["defense"] = {"name": "my_parts:Fog", "parameters": {"p": 0.3}}
        found["model"] = "my_parts:build"
        found["metrics"]["luck"] = {**found["metrics"]["ssim"]}
        found["custom_metrics"] = {"luck": LUCK}
        found["unavailable"]["fate"] = "its weights are missing"
        path.write_text(json.dumps(found))
    return folder


def opened(folder: Path) -> AuditResult:
    return AuditResult.load(folder)


def test_the_folder_opens_and_its_parts_keep_their_names(foreign: Path) -> None:
    result = opened(foreign)
    page = render(result, title="Strangers")
    for words in ("my_parts:Oracle(strength=2)", "my_parts:Fog(p=0.3)", "my_parts:build", "Luck ↑"):
        assert words in page
    assert "fate was not measured: its weights are missing" in page


def test_the_terminal_shows_the_metric_with_its_own_digits(foreign: Path) -> None:
    result = opened(foreign)
    out = io.StringIO()
    print_result(result, Console(file=out, width=160))
    mean = result.findings[0].metrics["luck"].mean
    assert "Luck ↑" in out.getvalue()
    assert f" {mean:.2f} " in out.getvalue()


def test_the_folder_is_written_as_tables_and_figures(foreign: Path, tmp_path: Path) -> None:
    result = opened(foreign)
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert {row["attack"] for row in rows} == {"my_parts:Oracle"}
    assert {row["defense"] for row in rows} == {"my_parts:Fog(p=0.3)"}
    assert all(row["luck_mean"] for row in rows)
    assert r"my\_parts:Fog(p=0.3) & my\_parts:Oracle(strength=2) & naive" in result.to_latex()
    (strip,) = write_figures(result, tmp_path / "figures", ["svg"])
    assert "my_parts:Fog(p=0.3)" in strip.read_text()


def test_the_folder_is_compared(foreign: Path) -> None:
    result = opened(foreign)
    comparison = compare_results([result, result])
    (compared,) = comparison.comparisons
    assert len(compared.findings) == len(result.findings)
    assert all("luck" in pair.differences for pair in compared.findings)
    page = render_comparison(comparison)
    assert "my_parts:Oracle(strength=2)" in page
    assert "Luck ↑" in page


@pytest.mark.parametrize("change", [{"digits": 10**9}, {"digits": -1}, {"name": "fate"}])
def test_a_description_that_no_audit_writes_is_refused(
    foreign: Path, change: dict[str, object]
) -> None:
    path = next((foreign / "findings").glob("*naive*.json"))
    found = json.loads(path.read_text())
    found["custom_metrics"]["luck"].update(change)
    path.write_text(json.dumps(found))
    with pytest.raises(RunFolderError, match=r"custom_metrics.luck"):
        opened(foreign)


def test_a_custom_description_cannot_redefine_a_metric_of_keyhole(foreign: Path) -> None:
    path = next((foreign / "findings").glob("*naive*.json"))
    found = json.loads(path.read_text())
    found["custom_metrics"]["ssim"] = {**LUCK, "name": "ssim", "high": 100.0}
    found["metrics"]["ssim"]["per_image"] = [50.0, 50.0]
    path.write_text(json.dumps(found))
    with pytest.raises(RunFolderError, match=r"metrics.ssim: a value is out of range"):
        opened(foreign)
