"""Marked places in Markdown are filled from results, and what is not there is an error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from keyhole.errors import BadValue
from keyhole_studies.documents import Templates, find_pages, write_pages

TEMPLATE = """\
{% set found = result("one/cell") %}
| SSIM | n |
|---|---|
| {{ row(found, "ig").ssim | score }} | {{ found.images }} |
"""
PAGE = """\
# A page

<!-- results: one -->
| SSIM | n |
|---|---|
| .999 | 1 |
<!-- end -->

It saw <!-- = row(result("one/cell"), "ig", adaptive=true).ssim | score(2) -->.99<!-- end -->.
"""
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A README, a page with a table and a figure, and the result that both quote."""
    (tmp_path / "docs" / "tables").mkdir(parents=True)
    (tmp_path / "docs" / "tables" / "one.md.j2").write_text(TEMPLATE)
    (tmp_path / "docs" / "page.md").write_text(PAGE)
    (tmp_path / "README.md").write_text("nothing is marked here")
    rows = {
        "ig": {"attacker": "naive", "metrics": {"ssim": {"mean": 0.4331}}},
        "ig (adaptive)": {"attacker": "adaptive", "metrics": {"ssim": {"mean": 0.75}}},
    }
    for row in rows.values():
        row |= {"iterations": 3, "seconds": 1.0}
    cell = {"piece": "cell", "images": 8, "rows": rows}
    (tmp_path / "results" / "one").mkdir(parents=True)
    (tmp_path / "results" / "one" / "cell.json").write_text(json.dumps(cell))
    return tmp_path


def write(root: Path) -> list[Path]:
    templates = Templates(root / "docs" / "tables", root / "results")
    return list(write_pages(find_pages(root), templates))


def test_figures_are_replaced_and_all_else_stays(repository: Path) -> None:
    page = repository / "docs" / "page.md"
    assert write(repository) == [page]
    expected = PAGE.replace("| .999 | 1 |", "| .433 | 8 |").replace(">.99<", ">.75<")
    assert page.read_text() == expected
    assert write(repository) == []


def test_another_result_changes_the_page(repository: Path) -> None:
    write(repository)
    file = repository / "results" / "one" / "cell.json"
    file.write_text(file.read_text().replace("0.4331", "0.1"))
    assert write(repository) == [repository / "docs" / "page.md"]
    assert "| .100 | 8 |" in (repository / "docs" / "page.md").read_text()


@pytest.mark.parametrize(
    ("was", "becomes", "words"),
    [
        ("results: one", "results: two", "has no template two"),
        ("one/cell", "one/other", "other.json does not exist"),
        ('"ig", adaptive', '"dia", adaptive', "no row of dia"),
        (".ssim | score(2)", ".psnr | score(2)", "psnr"),
        ("| score(2)", "| no_filter", "no_filter"),
        ("| .999 | 1 |\n<!-- end -->", "| .999 | 1 |", "has no <!-- end -->"),
        (">.99<!-- end -->", ">.99", "has no <!-- end -->"),
    ],
)
def test_what_is_not_there_is_said_with_the_page(
    repository: Path, was: str, becomes: str, words: str
) -> None:
    page = repository / "docs" / "page.md"
    page.write_text(PAGE.replace(was, becomes))
    with pytest.raises(BadValue, match=r"page\.md: ") as caught:
        write(repository)
    assert words in str(caught.value)
    assert page.read_text() == PAGE.replace(was, becomes)


def test_a_template_reaches_nothing_but_results(repository: Path) -> None:
    page = repository / "docs" / "page.md"
    page.write_text("<!-- = row.__globals__ -->x<!-- end -->")
    with pytest.raises(BadValue, match="unsafe"):
        write(repository)


def test_the_command_writes_pages_and_says_which(
    keyhole: Command, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    code, out, err = keyhole("study", "--write-docs")
    assert (code, out) == (0, "")
    assert f"written: {Path('docs/page.md')}" in err
    assert "1 pages take figures from results; 1 changed" in err
    code, _, err = keyhole("study", "--write-docs")
    assert (code, "written" in err) == (0, False)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["study", "--write-docs"], "run this in Keyhole's repository"),
        (["study", "dia", "--write-docs"], "leave the study's name out"),
        (["study"], "name a study: dia"),
    ],
)
def test_what_the_command_cannot_do_is_said_in_one_line(
    keyhole: Command, arguments: list[str], words: str
) -> None:
    code, out, err = keyhole(*arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
