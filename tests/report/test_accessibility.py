"""No page keeps anybody out: axe-core, at the width of a phone, light and dark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import find_violations, launch_browser, needs_chromium, open_file
from frontiers import make_frontier
from keyhole.auditing import AuditResult, MembershipPlan, compare_results, infer_membership
from keyhole.auditing.measured import read_shipped
from keyhole.auditing.store import Store
from keyhole.report import membership_page, render
from keyhole.report.comparison_page import render_comparison
from keyhole.report.frontier_page import render_frontier
from keyhole.report.leaderboard import render_leaderboard
from synthetic_runs import make_finding, make_run

pytestmark = needs_chromium
NAME = "gaussian.sigma"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_browser() as chromium:
        yield chromium


def make_sweep(folder: Path) -> AuditResult:
    """A run over three strengths, with a server that lies."""
    store = Store.open(folder, {"title": "A sweep", "swept": [NAME]})
    try:
        for sigma in (0.001, 0.01, 0.1):
            for malicious in (False, True):
                finding = make_finding(
                    ("gaussian", {"sigma": sigma}), "linear", "adaptive", malicious=malicious
                )
                finding.recipe["swept"] = {NAME: sigma}
                store.add(finding, {})
    finally:
        store.release()
    return AuditResult.load(folder)


def render_sweep(folder: Path) -> str:
    page = render(make_sweep(folder / "run"))
    assert f"Sweep over <code>{NAME}</code>" in page
    return page


def render_compared(folder: Path) -> str:
    return render_comparison(
        compare_results([make_run(folder / name, victims=4, side=8) for name in "ab"])
    )


def render_membership(folder: Path) -> str:
    plan = MembershipPlan(model="mlp", members=20, public=40, epochs=1, attacks=("loss",))
    return membership_page.render(infer_membership(plan, out=folder / "run"))


PAGES: dict[str, Callable[[Path], str]] = {
    "audit": lambda folder: render(make_run(folder / "run", victims=4, side=8)),
    "sweep": render_sweep,
    "frontier": lambda folder: render_frontier(make_frontier()),
    "leaderboard": lambda folder: render_leaderboard(read_shipped()[:40]),
    "comparison": render_compared,
    "membership": render_membership,
}


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious_and_nothing_is_wider_than_a_phone(
    browser: Any, tmp_path: Path, name: str
) -> None:
    file = tmp_path / f"{name}.html"
    file.write_text(PAGES[name](tmp_path), encoding="utf-8")
    page = open_file(browser, file, bypass_csp=True, viewport={"width": 420, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        assert find_violations(page) == []
    assert page.problems == []
    page.close()


def test_tables_of_other_pages_are_sorted_as_well(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "frontier.html"
    file.write_text(render_frontier(make_frontier()), encoding="utf-8")
    page = open_file(browser, file)
    page.get_by_role("button", name="Accuracy").click()
    cells = page.locator(".settings tbody td:nth-child(4)")
    found = [float(text.split("%")[0]) for text in cells.all_inner_texts()]
    assert len(found) > 2
    assert found == sorted(found, reverse=True)
    page.close()
