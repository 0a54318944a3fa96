"""Results of others: what is valid counts, what is not is one line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing import AuditResult, Plan, Stage, run_plan
from keyhole.auditing.submissions import read_submissions
from keyhole.errors import DataMissing, RunFolderError


@pytest.fixture(scope="module")
def valid() -> dict[str, Any]:
    stage = Stage(data="digits", attacks=("linear",), victims=1)
    return run_plan(Plan(stage=(stage,))).to_json()


def write(folder: Path, name: str, value: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def test_a_valid_result_counts_with_its_day_and_its_file(
    valid: dict[str, Any], tmp_path: Path
) -> None:
    path = write(tmp_path, "deep/mine.json", {**valid, "date": "2026-01-31"})
    found = read_submissions([tmp_path])
    [measured] = found.measurements
    assert (measured.read, measured.images, measured.date) == (1, 1, "2026-01-31")
    assert measured.source == path.as_posix()
    assert (found.valid, found.left_out) == (1, ())


def without(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda valid: {k: v for k, v in valid.items() if k != key}


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda valid: "{", "cannot be read"),
        (lambda valid: [1], "no result of an audit: it has no schema_version"),
        (without("schema_version"), "it has no schema_version"),
        (without("notes"), "it has no notes"),
        (lambda valid: {**valid, "schema_version": 2}, "install a newer one"),
        (lambda valid: {**valid, "findings": []}, "says of no image whether it was read"),
        (lambda valid: {**valid, "findings": [{}]}, "not as an audit writes it"),
        (lambda valid: {**valid, "date": "soon"}, "write it as 2026-01-31"),
        (lambda valid: {**valid, "date": "2026-02-31"}, "write it as 2026-01-31"),
    ],
)
def test_what_is_not_valid_is_left_out_with_one_line(
    spoil: Callable[[dict[str, Any]], Any], why: str, valid: dict[str, Any], tmp_path: Path
) -> None:
    bad = write(tmp_path, "bad.json", spoil(valid))
    write(tmp_path, "good.json", valid)
    with pytest.raises(RunFolderError, match=re.escape(why)):
        read_submissions([tmp_path, bad])
    found = read_submissions([tmp_path])
    assert len(found.measurements) == found.valid == 1
    [line] = found.left_out
    assert "bad.json" in line
    assert why in line
    assert "\n" not in line


def test_shares_that_do_not_follow_from_the_images_are_refused(
    valid: dict[str, Any], tmp_path: Path
) -> None:
    flattered = json.loads(json.dumps(valid))
    flattered["findings"][0]["metrics"]["read"]["mean"] = 0.0
    write(tmp_path, "flattered.json", flattered)
    assert "metrics.read.mean" in read_submissions([tmp_path]).left_out[0]


def test_cells_of_studies_and_results_that_are_known_are_not_read_twice(
    valid: dict[str, Any], tmp_path: Path
) -> None:
    write(tmp_path, "cell.json", {"piece": "small"})
    write(tmp_path, "known.json", valid)
    found = read_submissions([tmp_path], known=["known.json"])
    assert (found.measurements, found.valid, found.left_out) == ((), 0, ())
    assert read_submissions([tmp_path], known=["own.json"]).valid == 1
    with pytest.raises(RunFolderError, match=r"cell\.json is no result of an audit"):
        read_submissions([tmp_path / "cell.json"])


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="does not exist"):
        read_submissions([tmp_path / "nowhere"])


def test_results_say_on_which_day_they_were_found(valid: dict[str, Any]) -> None:
    assert AuditResult.from_json(valid).date == valid["date"]
    older = {k: v for k, v in valid.items() if k != "date"}
    assert "date" not in AuditResult.from_json(older).to_json()
    with pytest.raises(RunFolderError, match="2026-01-31"):
        AuditResult.from_json({**valid, "date": 20260131})
