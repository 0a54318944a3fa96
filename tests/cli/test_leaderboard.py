"""``keyhole leaderboard``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Keyhole = Callable[..., tuple[int, str, str]]
AUDIT = (
    *("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1"),
    *("--steps", "1", "--lr", "0.1"),  # a regime of which nothing comes with Keyhole
)


@pytest.fixture
def results(keyhole: Keyhole) -> Path:
    """A valid result, one that is not, and a cell of a study."""
    folder = Path("results")
    folder.mkdir()
    (folder / "mine.json").write_text(keyhole(*AUDIT, "--out", "run", "--json")[1])
    (folder / "bad.json").write_text("{}")
    (folder / "cell.json").write_text('{"piece": "small"}')
    return folder


def test_what_a_stranger_sent_stands_on_the_page_and_what_is_invalid_does_not(
    keyhole: Keyhole, results: Path
) -> None:
    code, out, err = keyhole("leaderboard", "--no-shipped")
    assert code == 0
    assert "1 setting in 1 board, 1 result read, 1 left out" in out
    assert "Page: site/index.html" in out
    assert err == "left out: results/bad.json is no result of an audit: it has no schema_version\n"
    page = Path("site/index.html").read_text()
    assert "results/mine.json" in page
    assert page.count("results/bad.json") == 1


def test_json_has_one_row_for_each_setting(keyhole: Keyhole, results: Path) -> None:
    code, out, err = keyhole("leaderboard", str(results), "--out", "here", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["page"] == "here/index.html"
    assert len(found["left_out"]) == 1
    mine = [row for row in found["rows"] if row["source"] == "results/mine.json"]
    assert [(row["read"], row["images"], row["rank"]) for row in mine] == [(1, 1, None)]
    assert len(found["rows"]) > 50, "the measurements that come with Keyhole"


def test_without_any_folder_the_shipped_measurements_make_the_page(keyhole: Keyhole) -> None:
    code, out, _ = keyhole("leaderboard")
    assert code == 0
    assert "0 results read, 0 left out" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere",), "nowhere does not exist"),
        (("--out", "file"), "file is a file"),
        (("bad.json",), "bad.json is no result of an audit: it has no schema_version"),
    ],
)
def test_what_is_not_there_is_refused(
    keyhole: Keyhole, arguments: tuple[str, ...], words: str
) -> None:
    Path("file").write_text("")
    Path("bad.json").write_text("{}")
    code, _, err = keyhole("leaderboard", *arguments)
    assert (code, err.count("\n")) == (2, 1)
    assert words in err
    assert not Path("site").exists()
