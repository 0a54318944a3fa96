"""README and docs show what results/ says, or say why a table cannot be taken from there."""

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
TABLE = re.compile(r"^ *\|.*\n *\|[-| :]+\|\n(?: *\|.*\n)+", re.MULTILINE)
MARKED = re.compile(r"<!-- results: \S+ -->\n(.*?\n)<!-- end -->", re.DOTALL)
FIGURE = re.compile(r"\d*\.\d+|\d+ ?%|\d+ dB|\d+ of \d+")
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
def test_a_table_with_figures_is_written_from_results_or_says_why_not(page: Path) -> None:
    """A new table: mark it, with a template in docs/tables, or list it with the reason there."""
    heads = [table.partition("\n")[0].strip() for table in unmarked_tables(page)]
    assert [head for head in heads if head not in REASONS] == []


def test_no_reason_outlives_its_table() -> None:
    heads = {t.partition("\n")[0].strip() for page in PAGES for t in unmarked_tables(page)}
    assert set(REASONS) - heads == set()
    assert all(len(reason) > 20 for reason in REASONS.values())
