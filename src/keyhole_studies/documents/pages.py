"""Marked places in Markdown files, whose text is a template filled in.

A table or a paragraph stands between two comments, the first of which names its template:

    <!-- results: mjp-deit -->
    | gamma | .1 |
    <!-- end -->

A figure within a sentence carries its expression:

    AUC <!-- = result("csvar/overfitting").trials[0].inferences[0].auc | score -->.523<!-- end -->
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from keyhole.atomic import write_text
from keyhole.errors import BadValue
from keyhole_studies.documents.templates import Templates

BLOCK = re.compile(r"(<!-- results: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FIGURE = re.compile(r"(<!-- = (.+?) -->)([^<\n]*)(<!-- end -->)")
BEGINNINGS = re.compile(r"<!-- (?:results: |= )")


def find_pages(root: Path) -> list[Path]:
    """The README and all pages of a repository's documentation that have marked places."""
    built = root / "docs" / "_build"
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    pages = [page for page in pages if not page.is_relative_to(built)]
    return [p for p in pages if p.is_file() and BEGINNINGS.search(p.read_text(encoding="utf-8"))]


def write_pages(pages: Iterable[Path], templates: Templates) -> Iterator[Path]:
    """Writes marked places anew and yields the pages that have changed.

    Args:
        pages: Markdown files.
        templates: What stands in the marked places.
    """
    for page in pages:
        text = page.read_text(encoding="utf-8")
        new = fill_page(text, templates, page.name)
        if new != text:
            write_text(page, new)
            yield page


def fill_page(text: str, templates: Templates, name: str) -> str:
    """A page's text with its marked places written anew.

    Args:
        text: The text.
        templates: What stands in the marked places.
        name: What errors call the page.
    """
    try:
        filled, blocks = BLOCK.subn(lambda m: m[1] + templates.fill(m[2]) + "\n" + m[4], text)
        filled, figures = FIGURE.subn(lambda m: m[1] + templates.evaluate(m[2]) + m[4], filled)
    except BadValue as error:
        raise BadValue(f"{name}: {error}") from None
    if blocks + figures != len(BEGINNINGS.findall(text)):
        raise BadValue(f"{name}: a place that is marked with <!-- results --> has no <!-- end -->")
    return filled
