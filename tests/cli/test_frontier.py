"""``keyhole frontier``, and the option ``--frontier`` of audits and reports."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from frontiers import make_frontier

Keyhole = Callable[..., tuple[int, str, str]]
SMALL = (
    *("frontier", "--model", "mlp", "--data", "digits", "--clients", "2", "--images", "8"),
    *("--rounds", "1", "--epochs", "1", "--victims", "1", "--iterations", "2"),
)
AUDIT = ("audit", "--model", "mlp", "--data", "digits", "--attack", "linear", "--victims", "1")


def test_a_frontier_prints_what_to_do_and_leaves_a_page_and_a_file(keyhole: Keyhole) -> None:
    command = (*SMALL, "--defenses", "dropout(p=[.1,.2])", "--attacks", "linear", "--out", "front")
    code, out, _ = keyhole(*command)
    assert code == 0
    assert "What to do:" in out
    assert "Frontier: front\n" in out
    assert "Report:   front/frontier.html\n" in out
    found = json.loads(Path("front/frontier.json").read_text())
    assert [each["label"] for each in found["settings"]] == [
        "none",
        "dropout(p=0.1)",
        "dropout(p=0.2)",
    ]
    assert len(list(Path("pieces").iterdir())) == 3
    code, out, err = keyhole(*command, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name the defenses to compare"),
        (("--defenses", "gausian"), "did you mean gaussian"),
        (("--search", "gausian(sigma=1..2)"), "did you mean gaussian"),
        (("--search", "gaussian(sigma=1)"), "from the mildest value to the strongest"),
        (("--defenses", "topk(k=[])"), "is an empty list"),
        (("--defenses", "none", "--attacks", "lineer"), "did you mean linear"),
        (("--defenses", "none", "--attacks", "ig(itrations=9)"), "did you mean iterations"),
        (("--defenses", "topk(k=[.1,2])"), "k"),
        (("--defenses", "none", "--partition", "dirichlet(alhpa=1)"), "did you mean alpha"),
        (("--defenses", "none", "--seeds", "x"), "is no seed"),
        (("--defenses", "none", "--data", "digitz"), "did you mean digits"),
        (("--defenses", "none", "--on", "mars"), "choose local or ray"),
        (("--quick", "--workers", "2", "--on", "ray"), "Ray decides"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line_and_leaves_nothing(
    keyhole: Keyhole, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = keyhole("frontier", *arguments)
    assert code == 2
    assert words in err
    assert out == ""
    assert err.count("\n") == 1
    assert os.listdir() == []


def test_an_audit_that_is_given_a_frontier_ends_with_it_and_keeps_it(keyhole: Keyhole) -> None:
    make_frontier().save(Path("front"))
    code, out, _ = keyhole(*AUDIT, "--frontier", "front", "--out", "run")
    assert code == 0
    assert "mildest settings that no attacker broke" in " ".join(out.split())
    shutil.rmtree("front")
    code, out, _ = keyhole("report", "run", "--json")
    assert json.loads(out)["what_to_do"][0]["source"] == "frontier"
    page = Path("run/report.html").read_text()
    advice = page[page.index("<h2>What to do</h2>") :]
    assert "topk(k=0.01): 10.0 points of accuracy less" in advice


def test_a_folder_that_is_no_frontier_is_refused_before_the_audit(keyhole: Keyhole) -> None:
    code, _, err = keyhole(*AUDIT, "--frontier", "nowhere", "--out", "run")
    assert (code, err.count("\n")) == (2, 1)
    assert "keyhole frontier" in err
    assert not Path("run").exists()


def test_an_audit_without_a_frontier_names_the_command_for_one(keyhole: Keyhole) -> None:
    code, out, _ = keyhole(*AUDIT, "--out", "run")
    assert code == 0
    assert "keyhole frontier --model mlp --data digits" in " ".join(out.split())
