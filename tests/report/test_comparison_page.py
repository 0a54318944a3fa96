"""The page and the terminal's tables of a comparison."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from keyhole.auditing import AuditResult, Comparison, Plan, Stage, compare_results, run_plan
from keyhole.report.comparison_console import print_comparison
from keyhole.report.comparison_page import render_comparison, write_comparison

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TITLE = '<img src=x onerror="window.foreign=1"><script>window.foreign=1</script>'


def run(folder: Path, seed: int = 0, **values: Any) -> AuditResult:
    chosen = {"data": "digits", "attacks": ("linear",), "victims": 6, **values}
    return run_plan(Plan(title=TITLE, seed=seed, stage=(Stage(**chosen),)), out=folder)


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """Three runs: the second hides what the first shows, the third attacks other images."""
    place = tmp_path_factory.mktemp("runs")
    first = run(place / "a", defenses=("none", "gaussian(sigma=0.001)"))
    run(place / "b", defenses=("none", "gaussian(sigma=1)"), attacks=("linear", "labels"))
    for path in (place / "b" / "findings").glob("*.json"):
        found = json.loads(path.read_text())
        if found["defense"]["name"] == "gaussian":
            found["defense"]["parameters"]["sigma"] = 0.001
        path.write_text(json.dumps(found))
    other = run(place / "c", seed=1, defenses=("none",))
    return compare_results([first, AuditResult.load(place / "b"), other])


@pytest.fixture(scope="module")
def page(comparison: Comparison) -> str:
    return render_comparison(comparison)


def test_the_page_loads_nothing_from_outside(page: str) -> None:
    addresses = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert addresses
    assert all(a.startswith("data:image/") for a in addresses)
    assert "Content-Security-Policy" in page


def test_every_pair_every_verdict_and_every_lone_finding_is_on_the_page(
    comparison: Comparison, page: str
) -> None:
    for compared in comparison.comparisons:
        for pair in compared.verdicts:
            for verdict in filter(None, (pair.first, pair.second)):
                assert verdict.words in page
    assert page.count('class="leak less"') > 2
    assert page.count(">changed</span>") == 1
    assert page.count("not in this run") == 1
    assert "means alone are compared: the runs attack other images (seeds 0 and 1)" in page
    assert "labels (naive)" in page
    assert "1 of 2 verdicts changed." in page


def test_runs_show_the_same_images_side_by_side(page: str) -> None:
    rows = page.split('class="row"')[1:]
    assert len(rows) == 3
    for row in rows:
        assert row.count('alt="original"') == row.count('alt="A saw"') == 3
        assert row.count('alt="B saw"') == 3
        assert 'alt="C saw"' not in row


def test_names_are_escaped(page: str) -> None:
    assert TITLE not in page
    assert "&lt;img src=x" in page


def test_a_result_without_a_folder_is_compared_without_pictures(
    comparison: Comparison, tmp_path: Path
) -> None:
    alone = AuditResult.load(comparison.runs[0].save(tmp_path / "result.json"))
    page = render_comparison(compare_results([alone, comparison.runs[1]]))
    assert "data:image" not in page
    assert "1 of 2 verdicts changed." in page


def test_the_page_goes_to_a_file_or_into_a_folder(comparison: Comparison, tmp_path: Path) -> None:
    assert write_comparison(comparison, tmp_path / "new" / "x.html").endswith("x.html")
    assert write_comparison(comparison, tmp_path).endswith("compare.html")
    assert (tmp_path / "new" / "x.html").stat().st_size > 10_000


@pytest.mark.parametrize(("width", "wide"), [(80, False), (160, False), (80, True)])
def test_the_terminal_tells_differences_and_verdicts(
    comparison: Comparison, width: int, wide: bool
) -> None:
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=width), wide=wide)
    text = " ".join(out.getvalue().split())
    assert "B against A. 1 of 2 verdicts changed." in text
    assert "gaussian(sigma=0.001): A broken, B not broken changed" in text
    assert "note: means alone are compared" in text
    assert "only in B: mlp on digits, none: labels (naive)" in text
    assert ("MSE" in text) == (wide or width == 160)
    assert "pp*" in text
    if not wide:
        assert max(map(len, out.getvalue().splitlines())) <= max(width, 82)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_without_errors_and_fits(
    browser: Any, comparison: Comparison, tmp_path: Path, width: int
) -> None:
    file = write_comparison(comparison, tmp_path / "x.html")
    page = browser.new_page(viewport={"width": width, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda r: problems.append(r.url) if r.url.startswith(("http", "ws")) else None,
    )
    page.goto(f"file://{file}")
    page.locator(".row .pair").first.scroll_into_view_if_needed()
    page.evaluate("Promise.all([...document.images].map(i => (i.loading = 'eager', i.decode())))")
    assert problems == []
    assert page.evaluate("window.foreign") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [
        image.bounding_box() for image in page.locator(".row .pair").first.locator("img").all()
    ]
    assert len(boxes) == 3
    assert {round(box["y"]) for box in boxes} == {round(boxes[0]["y"])}
    assert min(box["width"] for box in boxes) >= 80
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.close()


def test_nothing_is_cut_off_on_paper(browser: Any, comparison: Comparison, tmp_path: Path) -> None:
    file = write_comparison(comparison, tmp_path / "x.html")
    page = browser.new_page(viewport={"width": 703, "height": 1009})
    page.goto(f"file://{file}")
    page.emulate_media(media="print")
    cut = page.evaluate(
        """() => [...document.body.querySelectorAll("*")].filter(e => {
          const box = e.getBoundingClientRect();
          const cell = e.matches("td, th, .scroll");
          return box.left < -1 || box.right > 704
              || (cell && e.scrollWidth > e.clientWidth + 1);
        }).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`)"""
    )
    assert cut == []
    page.close()
