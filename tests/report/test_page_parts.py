"""What people do with a page: sort, filter, compare, look words up; with keys alone, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import find_violations, launch_browser, needs_chromium, open_file
from keyhole.report import write
from synthetic_runs import ATTACKERS, DEFENSES, make_run

pytestmark = needs_chromium
ROWS = len(ATTACKERS) * len(DEFENSES)
CELLS = "[...document.querySelectorAll('#table-1 tbody:not(.pinned) tr')].filter(r => !r.hidden)"


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(make_run(tmp_path_factory.mktemp("parts") / "run", victims=10, side=32))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_browser() as chromium:
        yield chromium


@pytest.fixture
def page(browser: Any, file: str) -> Iterator[Any]:
    page = open_file(browser, file)
    yield page
    assert page.problems == []
    page.close()


def column(page: Any, number: int) -> list[str]:
    """The first lines of a column's cells, as they are shown."""
    return list(page.evaluate(f"{CELLS}.map(r => r.cells[{number}].firstChild.textContent.trim())"))


def head(page: Any, words: str) -> Any:
    return page.locator("#table-1 thead th").filter(has_text=words)


def test_a_column_of_numbers_falls_first_and_rises_next(page: Any) -> None:
    before = column(page, 2)
    button = head(page, "PSNR").locator("button")
    button.click()
    numbers = [float(text) for text in column(page, 2)]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == ROWS
    assert [str(n) for n in numbers] != before
    assert head(page, "PSNR").get_attribute("aria-sort") == "descending"
    button.click()
    assert [float(text) for text in column(page, 2)] == sorted(numbers)
    assert head(page, "PSNR").get_attribute("aria-sort") == "ascending"


def test_words_are_sorted_by_keys_alone_and_baselines_stay_on_top(page: Any) -> None:
    button = head(page, "Defense").locator("button")
    button.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Space")
    assert head(page, "Defense").get_attribute("aria-sort") == "descending"
    names = column(page, 0)
    assert names[0] == "pruning(ratio=0.9)"
    assert names[-1].startswith("gaussian")
    assert page.locator("#table-1 tr").nth(1).inner_text().startswith("saw nothing")
    head(page, "PSNR").locator("button").click()
    assert head(page, "Defense").get_attribute("aria-sort") is None


def test_rows_are_filtered_by_words_and_by_what_was_read(page: Any) -> None:
    tools = page.locator("[data-filters=table-1]")
    count = tools.locator("output")
    assert count.inner_text() == f"{ROWS} rows"
    tools.get_by_label("Filter").fill("gaussian ADAPTIVE")
    assert set(column(page, 0)) == {f"gaussian(sigma={s})" for s in ("0.0001", "0.001", "0.01")}
    assert count.inner_text() == f"6 of {ROWS} rows"
    tools.get_by_label("Filter").fill("")
    tools.get_by_label("only where images were read").check()
    assert set(column(page, 0)) == {"none"}
    assert count.inner_text() == f"4 of {ROWS} rows"
    tools.get_by_label("only where images were read").uncheck()
    assert len(column(page, 0)) == ROWS


def cut_of(page: Any) -> str:
    style = "getComputedStyle(document.querySelector('.row figure + figure img')).clipPath"
    return str(page.evaluate(style))


def test_a_slider_moves_between_original_and_reconstruction_with_keys(page: Any) -> None:
    original, seen = (page.locator(".row .pair").first.locator("img").nth(i) for i in (0, 1))
    apart = seen.bounding_box()["x"] - original.bounding_box()["x"]
    assert apart > 100
    assert cut_of(page) == "none"
    page.get_by_role("button", name="Compare with sliders").first.focus()
    page.keyboard.press("Enter")
    assert original.bounding_box() == seen.bounding_box()
    assert cut_of(page) == "inset(0px 0px 0px 50%)"
    slider = page.locator(".row .wipe").first
    slider.focus()
    page.keyboard.press("End")
    assert cut_of(page) == "inset(0px 0px 0px 100%)"
    assert slider.get_attribute("aria-valuetext") == "100% original"
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert cut_of(page) == "inset(0px 0px 0px 1%)"
    assert "client" in slider.get_attribute("aria-label")
    page.emulate_media(media="print")
    assert cut_of(page) == "none"
    assert seen.bounding_box()["x"] > original.bounding_box()["x"]
    assert not slider.is_visible()


def test_words_are_explained_under_the_pointer(page: Any) -> None:
    tip = page.locator("#tip")
    assert not tip.is_visible()
    page.locator(".light .term").first.hover()
    assert tip.inner_text() == "It keeps to the protocol and looks at the updates that it receives."
    tip.hover()  # it stays while one reads it
    page.wait_for_timeout(300)
    assert tip.is_visible()
    page.mouse.move(1, 1)
    tip.wait_for(state="hidden")


def test_words_are_explained_where_the_focus_is_until_escape(page: Any) -> None:
    tip = page.locator("#tip")
    button = head(page, "SSIM").locator("button")
    button.focus()
    assert "Structural similarity" in tip.inner_text()
    assert button.get_attribute("aria-describedby") == "tip"
    page.keyboard.press("Escape")
    assert not tip.is_visible()
    assert button.get_attribute("aria-describedby") is None
    head(page, "s / client").locator("button").focus()
    assert tip.inner_text() == "seconds of attack per client"
    page.set_viewport_size({"width": 420, "height": 800})
    page.locator(".legend .term").last.focus()
    box = tip.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 420


def test_a_keyboard_reaches_everything_and_sees_where_it_is(page: Any) -> None:
    page.get_by_role("button", name="Compare with sliders").first.click()
    wanted = page.evaluate(
        "[...document.querySelectorAll('a[href], button, input, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility()).length"
    )
    page.evaluate("document.activeElement.blur()")
    reached, unmarked = set(), []
    for _ in range(wanted + 1):
        page.keyboard.press("Tab")
        place, outline = page.evaluate(
            "(e => [[...document.querySelectorAll('*')].indexOf(e),"
            " getComputedStyle(e).outlineStyle])(document.activeElement)"
        )
        reached.add(place)
        if outline == "none" and page.evaluate("document.activeElement !== document.body"):
            unmarked.append(page.evaluate("document.activeElement.outerHTML.slice(0, 80)"))
    body = page.evaluate("[...document.querySelectorAll('*')].indexOf(document.body)")
    assert len(reached - {body}) == wanted
    assert unmarked == []


def test_the_theme_is_a_pressed_button_by_keys(page: Any) -> None:
    page.emulate_media(color_scheme="dark")
    button = page.get_by_role("button", name="Dark mode")
    assert button.get_attribute("aria-pressed") == "true"
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != dark


def test_a_light_is_told_by_its_place_its_sign_and_its_words(page: Any) -> None:
    honest, malicious = (page.locator(".light").nth(i) for i in (0, 1))
    assert "Depends on the defense" in honest.inner_text()
    assert "Private images were read in 1 of 5 settings" in honest.inner_text()
    assert "Not tried" in malicious.inner_text()
    lit = page.evaluate("document.querySelector('.light .lit').getAttribute('cy')")
    assert lit == "26"
    assert malicious.locator(".lit").count() == 0
    assert honest.locator(".sign").count() == 1


def test_without_scripts_nothing_is_missing_but_what_needs_them(browser: Any, file: str) -> None:
    page = open_file(browser, file, java_script_enabled=False)
    assert page.locator(".tools").first.is_hidden()
    assert page.locator("#theme").is_hidden()
    assert page.locator("#table-1 tbody tr").count() > ROWS
    page.locator(".light .term").first.click()
    assert page.url.endswith("#term-honest")
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [420, 1300])
def test_axe_finds_nothing_serious(browser: Any, file: str, scheme: str, width: int) -> None:
    size = {"width": width, "height": 900}
    page = open_file(browser, file, viewport=size, color_scheme=scheme, bypass_csp=True)
    page.locator(".wipe-all").first.click()
    page.locator(".light .term").first.focus()
    assert find_violations(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_axe_would_find_what_is_wrong(browser: Any, tmp_path: Path) -> None:
    bad = tmp_path / "bad.html"
    bad.write_text("<html lang=en><title>x</title><img src='data:,'><button></button>")
    page = open_file(browser, bad)
    found = " ".join(find_violations(page))
    assert "image-alt" in found
    assert "button-name" in found
    page.close()


def test_a_printed_page_has_no_controls_and_repeats_the_heads_of_tables(page: Any) -> None:
    page.emulate_media(media="print")
    for controls in (".tools", ".contents", "#theme", "#print", ".wipe"):
        visible = page.locator(controls).evaluate_all("all => all.some(e => e.checkVisibility())")
        assert not visible, controls
    assert head(page, "PSNR").bounding_box()["height"] > 8
    shown = page.evaluate("getComputedStyle(document.querySelector('#table-1 thead')).display")
    assert shown == "table-header-group"
    buttons = "getComputedStyle(document.querySelector('#table-1 .sort')).display"
    assert page.evaluate(buttons) == "contents"  # a box of its own keeps the head from repeating
