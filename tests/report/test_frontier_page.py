"""The page and the terminal's table of a frontier."""

from __future__ import annotations

import dataclasses
import io
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from frontiers import make_frontier, make_outcome
from keyhole.frontier import FrontierResult
from keyhole.report.frontier_console import print_frontier
from keyhole.report.frontier_page import render_frontier, write_frontier
from keyhole.report.frontier_view import list_settings

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
TITLE = '<img src=x onerror="window.foreign=1"><script>window.foreign=1</script>'


@pytest.fixture(scope="module")
def result() -> FrontierResult:
    return make_frontier()


@pytest.fixture(scope="module")
def page(result: FrontierResult) -> str:
    return render_frontier(result)


def test_no_defense_comes_first_and_the_rest_by_accuracy(result: FrontierResult) -> None:
    lines = list_settings(result)
    assert [line.label for line in lines] == [
        "none",
        "dropout(p=0.25)",
        "topk(k=0.1)",
        "gaussian(sigma=0.1)",
        "topk(k=0.01)",
    ]
    assert [line.number for line in lines] == [1, 2, 3, 4, 5]
    held = lines[3]
    assert (held.status, held.read, held.points[0]) == ("not broken", ("0%", "0% – 14%"), "-3.0")
    assert (held.place, lines[4].place) == ("on the front", "behind it")
    assert lines[2].by == "ig (adaptive), last round"


def test_the_page_says_what_to_do_and_what_was_not_tried(result: FrontierResult, page: str) -> None:
    todo, _, rest = page.partition("Accuracy against what was read")
    assert todo.count('<li class="verdict">') == 2
    assert todo.index("gaussian(sigma=0.1)</code>") < todo.index("topk(k=0.01)</code>")
    assert "Nothing here is a promise" in todo
    for line in list_settings(result):
        assert f"<code>{line.label}</code>" in rest
    assert "What was not tried" in rest
    assert "No attacker who knows the defense met dropout(p=0.25)." in rest
    assert "a sentence &lt;b&gt;about&lt;/b&gt; the search." in rest


def test_the_plot_has_every_setting_by_its_number_and_takes_the_pages_colours(page: str) -> None:
    plot = page[page.index("<svg") : page.index("</svg>")]
    numbers = set(re.findall(r">(\d)</text>", plot))
    assert {"1", "2", "3", "4", "5"} <= numbers
    assert "currentColor" in plot
    assert "style=" not in plot


def test_where_nothing_held_the_page_says_so(result: FrontierResult) -> None:
    broken = tuple(each for each in result.settings if not each.held)
    page = render_frontier(dataclasses.replace(result, settings=broken))
    assert "No setting held: try stronger settings, or other defenses." in page
    assert '<li class="verdict">' not in page


def test_a_setting_that_nobody_attacked_is_on_the_page_but_not_in_the_plot(
    result: FrontierResult,
) -> None:
    blank = make_outcome("half", (0.9,), 0, attackers=())
    page = render_frontier(dataclasses.replace(result, settings=(*result.settings, blank)))
    assert "half: no attack on images could be used." in page
    assert page.count("not tested") == 1


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_has_the_table_and_the_words(result: FrontierResult, width: int) -> None:
    shown = io.StringIO()
    print_frontier(result, Console(file=shown, width=width))
    text = " ".join(shown.getvalue().split())
    assert "topk(k=0.01)" in text or "topk(k=0. 01)" in text
    assert "What to do:" in text
    assert "Nobody read any of 24 images" in text
    assert ("[0% – 14%]" in text) == (width > 100)
    assert max(map(len, shown.getvalue().splitlines())) <= width


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1300])
def test_the_page_opens_without_errors_and_fits(
    result: FrontierResult, browser: Any, tmp_path: Path, width: int, scheme: str
) -> None:
    hostile = result.plan.model_copy(update={"data": TITLE})
    file = write_frontier(dataclasses.replace(result, plan=hostile), tmp_path)
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(f"file://{file}")
    assert problems == []
    assert page.evaluate("window.foreign") is None
    assert page.locator("h1").text_content() == f"Frontier: mlp on {TITLE}"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    plot = page.locator(".front svg").bounding_box()
    assert 300 <= plot["width"] <= width
    chip, row = page.evaluate(
        "[document.querySelector('tr.changed .chip.not'), document.querySelector('tr.changed td')]"
        ".map(e => getComputedStyle(e).backgroundColor)"
    )
    assert chip != row, "a verdict can be told from its row"
    page.close()
