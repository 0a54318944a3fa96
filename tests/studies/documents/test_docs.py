"""README and docs quote what results/ says, or say why a table cannot be taken from there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from keyhole_studies.documents import Templates, find_pages, write_pages
from scripts import ROOT

BUILT = ROOT / "docs" / "_build"
PAGES = [
    ROOT / "README.md",
    *sorted(p for p in (ROOT / "docs").rglob("*.md") if not p.is_relative_to(BUILT)),
]
TABLE = re.compile(r"^\|.*\n\|[-| :]+\|\n(?:\|.*\n)+", re.MULTILINE)
MARKED = re.compile(r"<!-- results: \S+ -->\n(.*?\n)<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"\d*\.\d+|\d+ ?%|\d+ dB")
LISTED = tomllib.loads((ROOT / "docs/tables/not_from_results.toml").read_text(encoding="utf-8"))
REASONS: dict[str, str] = LISTED["tables"]


def plain(text: str) -> str:
    """Text without code, in which figures are parameters."""
    return re.sub(r"`[^`]*`", "", text)


def unmarked_tables(page: Path) -> list[str]:
    """The tables of a page that hold figures and are not written from results."""
    text = MARKED.sub("", page.read_text(encoding="utf-8"))
    text = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    tables = [match[0] for match in TABLE.finditer(text + "\n")]
    return [t for t in tables if FIGURE.search(plain(t.partition("\n")[2]))]


def figures(text: str) -> set[str]:
    """Decimals, shares and decibels; counts are no figures."""
    return set(FIGURE.findall(plain(text)))


WRITTEN = {
    figure
    for page in PAGES
    for table in MARKED.findall(page.read_text(encoding="utf-8"))
    for figure in figures(table)
}
"""Every figure of every table that is written from results."""


def test_every_marked_place_is_what_results_say(tmp_path: Path) -> None:
    """Fails with the names of pages that `keyhole study --write-docs` would change."""
    templates = Templates(ROOT / "docs" / "tables", ROOT / "results")
    copies = {}
    for page in find_pages(ROOT):
        copy = tmp_path / page.name
        copy.write_text(page.read_text(encoding="utf-8"), encoding="utf-8")
        copies[copy] = page
    assert copies
    assert [path.name for path in write_pages(copies, templates)] == []


def test_every_template_is_used() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    names = set(Templates(ROOT / "docs" / "tables", ROOT / "results").names()) - {"macros"}
    assert {name for name in names if f"<!-- results: {name} -->" not in pages} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_table_with_figures_is_written_from_results_quotes_them_or_says_why_not(
    page: Path,
) -> None:
    """A new table: mark it, with a template in docs/tables, or list it with the reason there."""
    for table in unmarked_tables(page):
        head = table.partition("\n")[0]
        if head not in REASONS:
            body = table.split("\n", 2)[2]
            assert figures(body) - WRITTEN == set(), f"{page.name}: {head}"


def test_no_reason_outlives_its_table() -> None:
    heads = {t.partition("\n")[0] for page in PAGES for t in unmarked_tables(page)}
    assert set(REASONS) - heads == set()
    assert all(len(reason) > 20 for reason in REASONS.values())
