from __future__ import annotations

import re
from dataclasses import replace

import pytest

from keyhole.auditing import MembershipPlan, MembershipResult, infer_membership
from keyhole.auditing.membership_result import Trial
from keyhole.report.membership_page import render
from keyhole.report.membership_view import summarise_trials


@pytest.fixture(scope="module")
def result() -> MembershipResult:
    plan = MembershipPlan(
        model="mlp",
        members=20,
        public=40,
        epochs=1,
        attacks=("loss", "lira(shadows=4)"),
        defenses=("none", "gaussian"),
    )
    return infer_membership(plan)


def test_the_page_shows_every_attacker_and_its_interval(result: MembershipResult) -> None:
    page = render(result)
    for trial in result.trials:
        for each in trial.inferences:
            assert f"{each.auc:.3f}<small>{each.auc_low:.3f}–{each.auc_high:.3f}</small>" in page
    assert page.count("<svg") == 2
    assert "20 others asked about" in page
    assert "a false-positive rate below 5.00%" in page


def test_the_page_has_no_style_or_handler_outside_its_policy(result: MembershipResult) -> None:
    page = render(result)
    body = page[page.index("<body>") :]
    assert not re.search(r"\s(style|on\w+)=", body)
    assert page.count("<style") == page.count("<script") == 1


def test_names_are_escaped(result: MembershipResult) -> None:
    plan = result.plan.model_copy(update={"data": "<img src=x onerror=alert(1)>"})
    page = render(replace(result, plan=plan, notes=("<b>note</b>",)))
    assert "<img src=x" not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "&lt;b&gt;note" in page


def seeming(trial: Trial, low: float) -> Trial:
    worst = replace(trial.inferences[0], auc=0.9, auc_low=low)
    return replace(trial, inferences=(worst,))


@pytest.mark.parametrize(
    ("lows", "words"),
    [
        ([0.6], "which images the model was trained on"),
        ([0.4], "could not tell the members of the model from"),
        ([0.6, 0.4], "which images 1 of 2 models was trained on"),
        ([0.6, 0.6, 0.4], "which images 2 of 3 models were trained on"),
        ([0.6, 0.6], "which images all 2 models were trained on"),
        ([0.4, 0.5], "could not tell the members of any of 2 models from"),
    ],
)
def test_the_headline_tells_none_some_and_all_apart(
    result: MembershipResult, lows: list[float], words: str
) -> None:
    assert words in summarise_trials([seeming(result.trials[0], low) for low in lows])
