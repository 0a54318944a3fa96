"""``keyhole report``: the page, tables and figures of an earlier run."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

Keyhole = Callable[..., tuple[int, str, str]]
SMALL = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "2")


def rows_of(path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(Path(path).read_text().splitlines()))


def test_tables_and_figures_are_written_where_they_are_asked_for(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--out", "runs/a")[0] == 0
    options = ("--csv", "out.csv", "--latex", "out.tex", "--figures", "figs/")
    code, out, err = keyhole("report", "runs/a", *options)
    assert (code, err) == (0, "")
    (row,) = rows_of("out.csv")
    assert (row["attack"], row["read_mean"]) == ("linear", "1.0")
    assert r"\toprule" in Path("out.tex").read_text()
    assert {path.suffix for path in Path("figs").iterdir()} == {".png", ".pdf", ".svg"}
    assert "CSV:      out.csv" in out
    assert "3 figures: figs" in out


def test_json_stays_alone_on_standard_output(keyhole: Keyhole) -> None:
    assert keyhole(*SMALL, "--out", "runs/a")[0] == 0
    options = ("--csv", "out.csv", "--per-image", "--figures", "figs", "--format", "svg")
    code, out, _ = keyhole("report", "runs/a", *options, "--json")
    assert code == 0
    assert json.loads(out)["run"] == "runs/a"
    assert len(rows_of("out.csv")) == 2
    assert [path.suffix for path in Path("figs").iterdir()] == [".svg"]


def test_a_membership_run_is_written_as_well(keyhole: Keyhole) -> None:
    small = ("--model", "mlp", "--members", "20", "--public", "40", "--epochs", "1")
    assert keyhole("membership", *small, "--attack", "loss", "--out", "run")[0] == 0
    options = ("--csv", "out.csv", "--latex", "out.tex", "--figures", "figs", "--format", "png")
    assert keyhole("report", "run", *options)[0] == 0
    assert "auc" in Path("out.csv").read_text()
    assert "AUC" in Path("out.tex").read_text()
    assert [path.name for path in Path("figs").iterdir()] == ["roc-mlp-digits-none-1-epochs.png"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--figures", "figs", "--format", "gif"), "format: it is any of png, pdf, svg, got 'gif'"),
        (("--figures", "figs", "--format", ","), "names nothing"),
        (("--csv", "runs"), "cannot write runs"),
    ],
)
def test_mistakes_are_one_line(keyhole: Keyhole, options: tuple[str, ...], words: str) -> None:
    assert keyhole(*SMALL, "--out", "runs/a")[0] == 0
    code, _, err = keyhole("report", "runs/a", *options)
    assert (code, len(err.splitlines())) == (2, 1)
    assert words in err
