"""The search: it halves, it stops, and it says what it found."""

from __future__ import annotations

import sys

import pytest

from frontiers import make_outcome
from keyhole.errors import DoesNotFit
from keyhole.frontier.outcome import SettingOutcome
from keyhole.frontier.ranges import read_range
from keyhole.frontier.search import choose_share, search_strength
from keyhole.spelling import parse_call

RANGE = read_range("gaussian(sigma=1e-4..1.0)")


class Measured:
    """Settings that hold from a strength on, and which were asked for."""

    def __init__(self, threshold: float) -> None:
        self.threshold, self.asked = threshold, list[float]()

    def __call__(self, defense: str) -> SettingOutcome:
        sigma = parse_call(defense)[1]["sigma"]
        self.asked.append(sigma)
        held = sigma >= self.threshold
        return make_outcome("gaussian", (0.9,), 0 if held else 3, sigma=sigma, clip=None)


def search(threshold: float, trials: int) -> tuple[Measured, object]:
    pytest.importorskip("optuna")
    measure = Measured(threshold)
    return measure, search_strength(RANGE, measure, trials)[0]


def test_a_range_is_halved_between_what_was_broken_and_what_held() -> None:
    pytest.importorskip("optuna")
    measure = Measured(0.005)
    found, outcomes = search_strength(RANGE, measure, 5)
    assert measure.asked == [1.0, 1e-4, 0.01, 0.001, 0.003162]
    assert (found.mildest, found.broken) == ("gaussian(sigma=0.01)", "gaussian(sigma=0.003162)")
    assert len(outcomes) == len(found.tried) == 5
    assert "takes for granted" in found.words


def test_more_trials_come_closer_to_the_threshold() -> None:
    pytest.importorskip("optuna")
    found, _ = search_strength(RANGE, Measured(0.005), 12)
    assert found.mildest is not None
    sigma = parse_call(found.mildest)[1]["sigma"]
    assert 0.005 <= sigma < 0.0052


def test_nothing_is_halved_where_even_the_strongest_is_broken() -> None:
    measure, found = search(2.0, 8)
    assert measure.asked == [1.0]
    assert found.mildest is None  # type: ignore[attr-defined]
    assert "even the strongest end was broken" in found.words  # type: ignore[attr-defined]


def test_nothing_is_halved_where_even_the_mildest_holds() -> None:
    measure, found = search(0.0, 8)
    assert measure.asked == [1.0, 1e-4]
    assert found.mildest == "gaussian(sigma=0.0001)"  # type: ignore[attr-defined]
    assert found.broken is None  # type: ignore[attr-defined]


def test_a_search_ends_where_two_strengths_have_one_spelling() -> None:
    pytest.importorskip("optuna")
    narrow = read_range("gaussian(sigma=0.1..0.1001)")
    found, outcomes = search_strength(narrow, Measured(0.10005), 30)
    assert len(outcomes) < 10
    assert found.mildest == "gaussian(sigma=0.1001)"


def test_the_next_share_is_the_middle_of_the_bracket() -> None:
    assert choose_share({1.0: True, 0.0: False, 0.5: True}) == 0.25
    assert choose_share({1.0: True, 0.0: False, 0.5: False}) == 0.75
    assert choose_share({1.0: False}) is None
    assert choose_share({1.0: True, 0.0: True}) is None


def test_without_optuna_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(DoesNotFit, match=r"pip install 'keyhole\[search\]'"):
        search_strength(RANGE, Measured(1), 3)
