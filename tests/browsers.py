"""A browser for tests of pages: Debian's Chromium, driven by playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SERIOUS = ("serious", "critical")
"""The impacts that axe-core gives to what keeps people from using a page."""

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
)


@contextmanager
def launch_browser() -> Iterator[Any]:
    """Starts Chromium, and closes it again."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


def open_file(browser: Any, file: Path | str, **options: Any) -> Any:
    """Opens a page; what goes wrong on it is collected in ``page.problems``.

    Args:
        browser: What :func:`launch_browser` gave.
        file: The page.
        options: Of playwright's ``new_page``.
    """
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.problems = []
    page.on("pageerror", lambda error: page.problems.append(str(error)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.on(
        "request",
        lambda r: page.problems.append(r.url) if r.url.startswith(("http", "ws")) else None,
    )
    page.goto(f"file://{Path(file).resolve()}")
    return page


def find_violations(page: Any) -> list[str]:
    """What axe-core finds serious or critical, with the elements that it is about."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is missing")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html'][:120]} {node['failureSummary'][:200]}"
        for each in found
        for node in each["nodes"]
        if each["impact"] in SERIOUS
    ]
