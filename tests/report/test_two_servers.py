"""A verdict in two lines: what an honest server reads, and what a malicious one reads."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from keyhole.auditing import AuditResult, Plan, Stage, compare_results, run_plan
from keyhole.report import print_result, render, view
from keyhole.report.comparison_console import print_comparison
from keyhole.report.comparison_page import render_comparison

CHANGED = "a fully connected layer of threshold rows added in front"
WEAK = "no defense was in place, so this says that these attacks are weak here"
CHIP = re.compile(r'class="chip (\w+)">([^<]+)<')


def run(folder: Path, *attacks: str, **values: object) -> AuditResult:
    stage = Stage.model_validate(
        {"data": "digits", "attacks": attacks, "victims": 2, "batch_size": 4, **values}
    )
    return run_plan(Plan(stage=(stage,)), out=folder)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """Without a defense only the malicious server reads, under noise none does."""
    defenses = ("none", "gaussian(sigma=10.0)")
    return run(tmp_path_factory.mktemp("both"), "linear", "imprint", defenses=defenses)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """Nothing but an attack by a malicious server."""
    return run(tmp_path_factory.mktemp("alone"), "imprint")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """Nothing but an attack by an honest server."""
    return run(tmp_path_factory.mktemp("honest"), "linear")


def set_noticed(result: AuditResult, noticed: bool | None) -> AuditResult:
    """The result as if clients would, or would not, have noticed; None: nobody checked."""
    values = result.to_json()
    for finding in values["findings"]:
        if finding["knowledge"]["server"] == "malicious":
            finding["noticed"] = noticed
    return AuditResult.from_json(values)


def show(result: AuditResult, width: int = 80) -> str:
    out = io.StringIO()
    print_result(result, Console(file=out, width=width))
    assert max(len(line) for line in out.getvalue().splitlines()) <= width
    return " ".join(out.getvalue().split())


@pytest.mark.parametrize("width", [80, 160])
def test_the_terminal_has_a_line_for_each_server(both: AuditResult, width: int) -> None:
    text = show(both, width)
    assert f"none: honest server: not broken by the attacks tried: linear (naive); {WEAK}" in text
    assert (
        f"none: malicious server (changes the model: {CHANGED}): broken by imprint (naive): 8 of 8 "
        "images read" in text
    )
    assert "gaussian(sigma=10.0): honest server: not broken by" in text
    assert f"gaussian(sigma=10.0): malicious server (changes the model: {CHANGED}): not" in text


def test_where_one_server_was_tried_the_terminal_has_one_line(
    alone: AuditResult, honest: AuditResult
) -> None:
    text = show(set_noticed(alone, None))
    assert "honest server:" not in text
    assert (
        f"none: malicious server (changes the model: {CHANGED}): broken by imprint (naive): 8 of 8 "
        "images read; only a server that alters the model was tried, no honest one" in text
    )
    text = show(honest)
    assert "none: not broken by the attacks tried: linear (naive)" in text
    assert "server" not in text


def read_cards(page: str) -> list[list[str]]:
    """The parts of each verdict's box, one for each server."""
    cards = page.split('<li class="verdict">')[1:]
    return [card.split("</li>")[0].split('<div class="server">')[1:] for card in cards]


def test_the_page_has_a_badge_and_a_picture_for_each_server(both: AuditResult) -> None:
    page = render(both)
    none, noisy = read_cards(page)
    assert [CHIP.findall(part) for part in none] == [
        [("not", "not broken")],
        [("broken", "broken")],
    ]
    assert [CHIP.findall(part) for part in noisy] == [[("not", "not broken")]] * 2
    for first, second in (none, noisy):
        assert "<b>honest server</b>" in first
        assert "linear (naive) saw" in first
        assert "imprint" not in first
        assert "<b>malicious server</b>" in second
        assert f"changes the model: {CHANGED}" in second
        assert re.search(r"imprint \(\w+\) saw", second)
        assert "linear" not in second
    for verdict in both.verdicts:
        for line in verdict.lines:
            assert page.count(line.words) >= 2  # in the summary and in the box
            assert f"<b>{line.subject}</b>" in page
    words = both.verdicts[1].lines[0].words
    missing = f"{words}; not tried here: paper attacker<br><b>malicious server"
    assert missing in page  # what was not tried is said with the server it is about


def test_the_page_of_one_server_has_one_badge(alone: AuditResult, honest: AuditResult) -> None:
    ((part,),) = read_cards(render(alone))
    assert CHIP.findall(part) == [("broken", "broken")]
    assert "<b>malicious server</b>" in part
    assert "imprint (naive) saw" in part
    ((part,),) = read_cards(render(honest))
    assert CHIP.findall(part) == [("not", "not broken")]
    assert "<b>" not in part


def test_the_headline_counts_each_server_apart(
    both: AuditResult, alone: AuditResult, honest: AuditResult
) -> None:
    assert view.summarise_verdicts(both.verdicts) == (
        "An honest server read private images in 0 of 2 settings; a malicious server, which "
        "changes the model, did so in 1 of 2 settings."
    )
    assert view.summarise_verdicts(alone.verdicts) == (
        "A malicious server, which changes the model, read private images in 1 of 1 setting."
    )
    assert view.summarise_verdicts(honest.verdicts).startswith("The setting was not broken by")


@pytest.mark.parametrize("noticed", [True, False])
def test_reports_say_whether_a_client_would_have_noticed(both: AuditResult, noticed: bool) -> None:
    checked, unchecked = set_noticed(both, noticed), set_noticed(both, None)
    would = "would have noticed" if noticed else "would not have noticed"
    assert show(checked).count(f"keyhole guard --incoming {would} the change") == 2
    assert f"guard --incoming {would} the change" in read_cards(render(checked))[0][1]
    assert "--incoming" not in show(unchecked)
    assert "--incoming" not in render(unchecked)


def test_a_folder_from_before_servers_were_judged_apart_opens(both: AuditResult) -> None:
    values = both.to_json()
    for verdict in values["verdicts"]:
        del verdict["malicious"]
    for finding in values["findings"]:
        del finding["noticed"]
    again, unchecked = AuditResult.from_json(values), set_noticed(both, None)
    assert again.verdicts == unchecked.verdicts
    assert show(again) == show(unchecked)


def forget_malicious(result: AuditResult) -> AuditResult:
    """The result as if no client's image had been read with a malicious server."""
    values = result.to_json()
    for finding in values["findings"]:
        if finding["knowledge"]["server"] == "malicious":
            read = finding["metrics"]["read"]
            read.update(dict.fromkeys(("mean", "low", "high", "worst"), 0.0))
            read["per_image"] = [0.0] * len(read["per_image"])
    return AuditResult.from_json(values)


def test_a_comparison_names_the_server_whose_verdict_changed(both: AuditResult) -> None:
    comparison = compare_results([both, forget_malicious(both)])
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=100))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert "none: honest server: A not broken, B not broken" in lines
    assert "none: malicious server: A broken, B not broken  changed" in lines
    assert "gaussian(sigma=10.0): malicious server: A not broken, B not broken" in lines
    assert "B against A. 1 of 2 verdicts changed." in out.getvalue()
    page = render_comparison(comparison)
    assert page.count(">changed</span>") == 1
    assert [status for _, status in CHIP.findall(page)].count("broken") == 1
    for verdict in both.verdicts:
        for line in verdict.lines:
            assert f"<b>{line.subject}</b>{line.words}" in page


def test_a_malicious_server_is_not_compared_with_an_honest_one(
    alone: AuditResult, honest: AuditResult
) -> None:
    out = io.StringIO()
    print_comparison(compare_results([honest, alone]), Console(file=out, width=100))
    lines = [line.strip() for line in out.getvalue().splitlines()]
    assert "none: honest server: A not broken, B not in this run" in lines
    assert "none: malicious server: A not in this run, B broken" in lines
    assert "No verdict is in both runs." in out.getvalue()
    assert "changed" not in out.getvalue()


def test_the_command_line_prints_both(keyhole: Callable[..., tuple[int, str, str]]) -> None:
    small = ("--model", "mlp", "--data", "digits", "--attack", "linear,imprint", "--victims", "1")
    code, out, _ = keyhole("audit", *small, "--batch-size", "4", "--out", "run", "--json")
    assert code == 0
    (verdict,) = json.loads(out)["verdicts"]
    assert (verdict["status"], verdict["server"]) == ("not broken", None)
    assert verdict["malicious"] == {
        "status": "broken",
        "by": "imprint (naive)",
        "read": 1.0,
        "changed": CHANGED,
        "tried": ["imprint (naive)"],
        "words": "broken by imprint (naive): 4 of 4 images read; keyhole guard --incoming would "
        "have noticed the change",
        "noticed": True,
        "alone": False,
    }
    text = " ".join(keyhole("report", "run")[1].split())
    assert "none: honest server: not broken" in text
    assert "none: malicious server (changes the model" in text


def test_foreign_words_of_a_change_are_escaped(both: AuditResult) -> None:
    (first, *_) = both.verdicts
    assert first.malicious is not None
    hostile = dataclasses.replace(first.malicious, changed="<script>[bold]\x1b[31m")
    verdicts = (dataclasses.replace(first, malicious=hostile),)
    result = dataclasses.replace(both, verdicts=verdicts)
    assert "<script>[bold]" not in render(result)
    assert "&lt;script&gt;[bold]" in render(result)
    assert "<script>[bold]" in show(result)
    assert "\x1b" not in show(result)
