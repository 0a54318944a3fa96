"""The site builds without a warning, and its menu leads to whole pages."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browsers import find_violations
from scripts import ROOT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
PARTS = ("sphinx", "myst_nb", "furo", "sphinx_design")
MISSING = [name for name in PARTS if importlib.util.find_spec(name) is None]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        bool(MISSING), reason=f"{', '.join(MISSING)} is missing: pip install 'keyhole[docs]'"
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, with warnings as errors."""
    out = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    built = subprocess.run(
        [*command, "-d", str(out.parent / "trees"), str(ROOT / "docs"), str(out)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    if CHROMIUM is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Any, site: Path) -> Iterator[Any]:
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on("requestfailed", lambda r: page.problems.append(r.url))
    page.on(
        "request",
        lambda r: page.problems.append(r.url) if r.url.startswith(("http", "ws")) else None,
    )
    page.goto((site / "index.html").as_uri())
    yield page
    page.close()


def test_each_entry_of_the_menu_leads_to_a_whole_page(page: Any, site: Path) -> None:
    captions = page.locator(".sidebar-tree .caption-text").all_text_contents()
    assert captions == [
        *("Start here", "How-to", "Explanations", "Reference", "Performance"),
        "Security and ethics",
    ]
    entries = page.locator(".sidebar-tree a.reference.internal")
    seen = set()
    for i in range(entries.count()):
        with page.expect_navigation():
            entries.nth(i).evaluate("a => a.click()")  # folded entries, too
        seen.add(page.url.removeprefix(site.as_uri()))
        assert page.locator("article h1").first.is_visible(), page.url
        assert len(page.locator("article").inner_text()) > 300, page.url
        assert page.locator("article .system-message, article .problematic").count() == 0, page.url
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert page.evaluate(broken) == [], page.url
    pages = {f"/{file.relative_to(site).as_posix()}" for file in site.rglob("*.html")}
    made = {"/genindex.html", "/py-modindex.html", "/search.html"}
    assert seen == pages - made - {"/index.html"}
    assert page.problems == []


def test_every_link_between_pages_leads_to_a_page_and_its_section(page: Any, site: Path) -> None:
    """Of the articles, where no warning of Sphinx sees plain HTML and anchors."""
    files = sorted(site.rglob("*.html"))
    ids, links = {}, []
    for file in files:
        page.goto(file.as_uri())
        ids[file.as_uri()] = set(
            page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        )
        links += page.evaluate("[...document.querySelectorAll('article a[href]')].map(a => a.href)")
    local = {link for link in links if link.startswith("file:")}
    assert len(local) > 100
    for link in local:
        target, _, anchor = link.partition("#")
        assert target in ids, link
        assert not anchor or anchor in ids[target], link


def test_the_site_does_not_scroll_sideways_on_a_phone(page: Any, site: Path) -> None:
    page.set_viewport_size({"width": 420, "height": 800})
    names = ("index", "start", "verdict", "reference/cli", "reference/result", "howto/my_attack")
    for name in (*names, "notebooks/own_gradient"):
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 420, name


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_pages_for_newcomers(
    page: Any, site: Path, scheme: str
) -> None:
    page.emulate_media(color_scheme=scheme)
    for name in ("index", "start", "verdict", "howto/my_attack", "notebooks/own_gradient"):
        page.goto((site / f"{name}.html").as_uri())
        assert find_violations(page) == [], name


def test_the_api_has_arguments_and_the_command_line_its_options(page: Any, site: Path) -> None:
    page.goto((site / "reference" / "api.html").as_uri())
    audit = page.locator("dl.py:has(> dt[id='keyhole.audit'])").inner_text()
    assert "The number of clients attacked." in audit
    page.goto((site / "reference" / "cli.html").as_uri())
    assert page.locator("section#keyhole-audit dt:has-text('--fail-on')").count() == 1
