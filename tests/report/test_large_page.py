"""A page on many victims stays small, and says which pictures it shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from keyhole.auditing import AuditResult
from keyhole.report import render
from keyhole.report.shown_pictures import (
    CLEAREST,
    FAIR,
    PictureBudget,
    choose_shown,
    list_pictures,
)
from synthetic_runs import make_run

MOST = 3_000_000
"""Bytes of a page on 1,000 victims."""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    return make_run(tmp_path_factory.mktemp("large") / "run", victims=1000, side=32)


@pytest.fixture(scope="module")
def page(large: AuditResult) -> str:
    return render(large)


def test_a_page_on_a_thousand_victims_is_small(page: str) -> None:
    assert 100_000 < len(page.encode()) < MOST
    assert "no room for" not in page


def test_photographs_are_left_out_where_the_page_has_no_room(tmp_path: Path) -> None:
    """Of noise, which cannot be compressed; the worst case of every row is still there."""
    result = make_run(tmp_path / "run", victims=20, side=224)
    page = render(result)
    assert 1_000_000 < len(page.encode()) < MOST
    (count,) = re.findall(r"no room for (\d+) more pictures", page)
    shown = len(re.findall(r'alt="(?:original|what the attacker saw)', page))
    rows = len(result.findings)
    cards = len(result.verdicts)
    assert int(count) + shown == 2 * (rows * (CLEAREST + FAIR) + cards)
    first = re.findall(r'<div class="row">.*?data-client="(\d+)"', page, re.DOTALL)
    clearest = {
        max(range(20), key=lambda victim: f.metrics["ssim"].per_image[victim])
        for f in result.findings
        if f.metrics["read"].mean
    }
    assert clearest <= {int(client) for client in first}


def test_the_worst_cases_come_first_and_a_blind_choice_follows(large: AuditResult) -> None:
    assert large.store is not None
    for finding in large.findings[:3]:
        kept = list_pictures(finding, large.store.pictures(finding.key))
        assert [each.victim for each in kept] == list(range(1000))
        shown = [each.victim for each in choose_shown(kept)]
        ssim = finding.metrics["ssim"].per_image
        worst = sorted(range(1000), key=lambda victim: -ssim[victim])[:CLEAREST]
        assert shown[:CLEAREST] == worst
        rest = [victim for victim in range(1000) if victim not in worst]
        assert shown[CLEAREST:] == rest[:FAIR]


def test_the_page_says_in_words_what_it_shows_and_where_the_rest_is(
    large: AuditResult, page: str
) -> None:
    words = (
        f"Of 1,000 clients: the {CLEAREST} clearest, worst case first, then {FAIR} in the "
        "audit&#39;s order, taken without looking."
    )
    assert page.count(words) == len(large.findings)
    for finding in large.findings:
        assert f"1,000 pictures lie in pictures/{finding.key}.safetensors" in page


def test_a_budget_leaves_whole_pairs_out() -> None:
    import torch

    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    budget = PictureBudget(room=0)
    assert budget.show(image, image) is None
    assert budget.left_out == 2
    assert budget.draw("<svg/>") == ""
    roomy = PictureBudget(room=10_000)
    shown = roomy.show(None, image)
    assert shown is not None
    assert shown[0] is None
    assert roomy.left_out == 0
