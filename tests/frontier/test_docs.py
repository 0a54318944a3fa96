"""The example of docs/frontier.md is the frontier in results/."""

from __future__ import annotations

import json

from keyhole.frontier import FrontierResult
from keyhole.frontier.outcome import Interval, SettingOutcome
from scripts import ROOT

MEASURED = json.loads((ROOT / "results" / "frontier" / "quick.json").read_text(encoding="utf-8"))


def percent(each: Interval, digits: int) -> str:
    value, low, high = (f"{100 * v:.{digits}f}" for v in (each.value, each.low, each.high))
    return f"{value}% ({low}–{high})"


def row_of(setting: SettingOutcome, plain: SettingOutcome) -> str:
    """One line of the table, in the order of its columns."""
    points = setting.cost(plain).points
    gained = f"{-points.value:+.1f} ({-points.high:+.1f} to {-points.low:+.1f})"
    if points.low == points.high == 0:
        gained = "0.0"
    worst, read = setting.worst, setting.read
    assert worst is not None
    assert read is not None
    return " | ".join(
        [
            f"| {setting.label.replace('.0)', ')')}{', searched' if setting.searched else ''}",
            percent(setting.accuracy, 1),
            "" if setting is plain else gained,
            percent(read, 0),
            f"{worst.attacker if worst.read else 'nobody'} |",
        ]
    ).replace("|  |", "| |")


def test_the_table_and_the_processor_time_are_those_of_the_results() -> None:
    page = (ROOT / "docs" / "frontier.md").read_text(encoding="utf-8")
    found = FrontierResult.from_json(MEASURED["frontier"])
    plain = found.undefended
    assert plain is not None
    table = [line for line in page.splitlines() if line.startswith("| ")]
    rows = [row_of(each, plain) for each in found.settings]
    assert set(rows) <= set(table), sorted(set(rows) - set(table))
    assert len(rows) == len(table) - 1, "and the line of headings"
    assert f"{MEASURED['processor_seconds']:.0f} seconds of processor time" in page
