"""The leaderboard: what is ranked with what, who is not ranked, and the page."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from keyhole.auditing.measured import read_shipped
from keyhole.auditing.measurement import Measurement, Regime
from keyhole.report.leaderboard import build_boards, render_leaderboard, write_leaderboard

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
REGIME = Regime("mlp", "digits", (8, 8), "random weights", 1, 1, 1, "gradient")
BOTH = ("ig (naive)", "ig (adaptive)")


def make(name: str, read: int, attackers: tuple[str, ...] = BOTH, **changes: Any) -> Measurement:
    facts: dict[str, Any] = {
        "regime": REGIME,
        "defense": {"name": name, "parameters": {}},
        "server": "honest",
        "read": read,
        "images": 8,
        "by": attackers[-1] if read else None,
        "attackers": attackers,
        "date": "2026-01-31",
        "version": "0.1.0",
        "source": f"results/{name}.json",
        **changes,
    }
    return Measurement(**facts)


MEASURED = (
    make("none", 8, ("linear (naive)",)),
    make("tip", 2),
    make("dp", 0),
    make("agp", 0),
    make("dropout", 0, ("ig (naive)",)),
    make("dp", 3, server="malicious"),
    make("dp", 4, regime=dataclasses.replace(REGIME, batch_size=8)),
)


def test_defenses_are_ranked_by_the_worst_share_and_equals_share_a_rank() -> None:
    board = build_boards(MEASURED)[0]
    ranks = {line.about.label: line.rank for line in board.judged}
    assert ranks == {"agp": "1", "dp": "1", "tip": "3", "none": ""}
    assert [line.about.label for line in board.judged] == ["agp", "dp", "tip", "none"]


def test_a_defense_that_no_adaptive_attacker_met_has_no_rank() -> None:
    board = build_boards(MEASURED)[0]
    [line] = board.unjudged
    assert (line.about.label, line.rank, line.share) == ("dropout", "", "0%")
    assert "dropout" not in {each.about.label for each in board.judged}


def test_regimes_and_servers_have_boards_of_their_own() -> None:
    boards = build_boards(MEASURED)
    found = [(b.regime.batch_size, b.server, len(b.judged)) for b in boards]
    assert found == [(1, "honest", 4), (1, "malicious", 1), (8, "honest", 1)]
    assert len({board.anchor for board in boards}) == 3


def test_a_worse_result_replaces_a_better_one_of_the_same_setting() -> None:
    worse = make("agp", 7, ("new (adaptive)",), source="stranger.json", date="2026-02-01")
    board = build_boards([*MEASURED, worse])[0]
    line = next(each for each in board.judged if each.about.label.startswith("agp"))
    assert (line.rank, line.about.source, line.about.by) == ("3", "stranger.json", "new (adaptive)")
    assert line.about.attackers == (*BOTH, "new (adaptive)")


def test_the_page_names_everything_that_a_row_needs() -> None:
    page = render_leaderboard(MEASURED, ["bad.json has <no> findings"])
    for text in ("2026-01-31", "keyhole 0.1.0", "results/tip.json", "ig (adaptive)", "0% – 37%"):
        assert text in page
    assert "bad.json has &lt;no&gt; findings" in page
    assert "Not ranked: no attacker who knows the defense has met these" in page
    assert page.count('<section id="') == 3
    anchors = re.findall(r'href="#([^"]+)"', page)
    assert all(f'id="{anchor}"' in page for anchor in anchors)
    assert len(anchors) == 3


def test_without_any_result_the_page_says_so() -> None:
    assert "There is no valid result yet." in render_leaderboard([])


@pytest.mark.parametrize("width", [420, 1300])
def test_the_page_of_what_ships_opens_without_errors_and_fits(tmp_path: Path, width: int) -> None:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    hostile = make("dp", 0, source='<script>window.foreign=1</script>" onclick="')
    file = write_leaderboard([*read_shipped(), hostile], tmp_path)
    problems: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: problems.append(message.text))
        page.goto(f"file://{file}")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("window.foreign") is None
        page.locator(".columns a").first.click()
        assert page.evaluate("window.scrollY") > 0
        browser.close()
    assert problems == []
