"""``keyhole compare``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Keyhole = Callable[..., tuple[int, str, str]]
SMALL = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "2")


@pytest.fixture
def runs(keyhole: Keyhole) -> Keyhole:
    """Two runs of other seeds in runs/a and runs/b."""
    for name, seed in (("a", "0"), ("b", "1")):
        assert keyhole(*SMALL, "--seed", seed, "--out", f"runs/{name}")[0] == 0
    return keyhole


def test_json_is_one_object_and_the_page_lies_beside_the_first_run(runs: Keyhole) -> None:
    code, out, err = runs("compare", "runs/a", "runs/b", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert set(found) == {"schema_version", "runs", "comparisons", "page"}
    (compared,) = found["comparisons"]
    assert (compared["first"], compared["second"]) == ("runs/a", "runs/b")
    (pair,) = compared["findings"]
    assert (pair["attack"], pair["paired"]) == ("linear", False)
    assert "the runs attack other images" in pair["why_not_paired"]
    assert set(pair["metrics"]["psnr"]) == {
        *("first", "second", "difference", "low", "high", "count", "leak", "per_image")
    }
    assert found["page"] == "runs/compare-a-b.html"
    assert "Content-Security-Policy" in Path(found["page"]).read_text()


def test_people_get_tables_and_the_place_of_the_page(runs: Keyhole) -> None:
    code, out, _ = runs("compare", "runs/a", "runs/a", "runs/b", "--out", "here.html")
    assert code == 0
    assert "B against A. None of 1 verdict changed." in out
    assert "C against A." in out
    assert out.endswith("Page: here.html\n")
    assert Path("here.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs/a",), "needs two runs or more"),
        (("runs/a", "nowhere"), "nowhere is not the folder of an audit"),
        (("runs/a", "member"), "member is a membership run: compare takes audits"),
        (("runs/a", "runs/b", "--out", "runs/a/plan.json/x"), "cannot write"),
    ],
)
def test_mistakes_are_one_line(runs: Keyhole, arguments: tuple[str, ...], words: str) -> None:
    Path("member").mkdir()
    Path("member/plan.json").write_text('{"members": 3}')
    code, _, err = runs("compare", *arguments)
    assert (code, len(err.splitlines())) == (2, 1)
    assert words in err
