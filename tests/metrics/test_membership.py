from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score, roc_curve

from keyhole.metrics.membership import (
    auc,
    auc_interval,
    balanced_accuracy,
    rate_at,
    roc,
)

scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=30)
"""Few values, so that many tie."""
fine_scores = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


def truth_and_scores(members: list[float], others: list[float]) -> tuple[list[int], list[float]]:
    return [1] * len(members) + [0] * len(others), members + others


def gaussian_scores(shift: float, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.normal(shift, 1, count), draw.normal(0, 1, count)


@given(scores | fine_scores, scores | fine_scores)
def test_curve_and_area_are_those_of_scikit_learn(
    members: list[float], others: list[float]
) -> None:
    truth, both = truth_and_scores(members, others)
    fpr, tpr, thresholds = roc_curve(truth, both, drop_intermediate=False)
    ours = roc(members, others)
    assert ours.false_positive_rate == pytest.approx(fpr)
    assert ours.true_positive_rate == pytest.approx(tpr)
    assert ours.thresholds[1:].tolist() == thresholds[1:].tolist()
    assert auc(members, others) == pytest.approx(roc_auc_score(truth, both))


@given(scores, scores)
def test_the_area_is_the_chance_that_a_member_beats_another(
    members: list[float], others: list[float]
) -> None:
    wins = [(m > o) + (m == o) / 2 for m in members for o in others]
    assert auc(members, others) == pytest.approx(np.mean(wins))
    assert auc(members, others) + auc(others, members) == pytest.approx(1)


@given(scores, scores)
def test_the_drawn_curve_has_the_same_area(members: list[float], others: list[float]) -> None:
    x, y = np.transpose(roc(members, others).plot_points())
    area = float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum())
    assert area == pytest.approx(auc(members, others))


@given(scores, scores, st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.29, 0.5, 1.0]))
def test_the_rate_is_the_best_that_any_threshold_gives_within_the_limit(
    members: list[float], others: list[float], limit: float
) -> None:
    allowed = [
        np.mean(np.array(members) >= t)
        for t in [*members, *others, math.inf]
        if sum(o >= t for o in others) <= limit * len(others) + 1e-9
    ]
    assert rate_at(roc(members, others), limit).rate == pytest.approx(max(allowed))


@given(scores, scores)
def test_balanced_accuracy_is_that_of_the_best_threshold(
    members: list[float], others: list[float]
) -> None:
    ours, theirs = np.array(members), np.array(others)
    thresholds = [*members, *others, math.inf]
    best = max((np.mean(ours >= t) + np.mean(theirs < t)) / 2 for t in thresholds)
    assert balanced_accuracy(roc(members, others)) == pytest.approx(best)


def test_endless_scores_are_the_highest_and_the_lowest() -> None:
    members, others = [math.inf, 1.0, -math.inf], [math.inf, 0.0, -math.inf]
    curve = roc(members, others)
    assert curve.plot_points() == roc([9.0, 1.0, -9.0], [9.0, 0.0, -9.0]).plot_points()
    assert auc(members, others) == auc([9.0, 1.0, -9.0], [9.0, 0.0, -9.0])


def test_nothing_is_read_in_between_two_points_of_the_curve() -> None:
    members, others = [1.0] * 10, [1.0] * 10
    assert rate_at(roc(members, others), 0.5).rate == 0
    assert auc(members, others) == 0.5


@pytest.mark.parametrize(("count", "resolved"), [(99, False), (100, True), (1000, True)])
def test_too_few_others_for_so_low_a_rate_are_told(count: int, resolved: bool) -> None:
    found = rate_at(roc([2.0, 0.0], np.arange(count) / count), 0.01)
    assert found.resolution == pytest.approx(1 / count)
    assert found.resolved is resolved
    assert found.rate == 0.5
    assert found.to_json()["resolved"] is resolved


def test_below_the_resolution_the_rate_is_the_one_without_a_false_alarm() -> None:
    curve = roc([5.0, 4.0, 1.0], [3.0, 2.0])
    assert rate_at(curve, 0.001).rate == rate_at(curve, 0.0).rate == pytest.approx(2 / 3)


def test_as_many_alarms_are_allowed_as_the_limit_says_in_spite_of_rounding() -> None:
    others = np.arange(100)
    members = others[-29:]
    assert 0.29 * 100 < 29
    assert rate_at(roc(members, others), 0.29).rate == 1


def test_a_curve_that_is_kept_is_short_and_densest_at_few_false_alarms() -> None:
    drawn = roc(*gaussian_scores(0.5, 5000)).plot_points()
    x, y = np.transpose(drawn)
    assert 100 < len(drawn) <= 200
    assert drawn[0] == (0, 0)
    assert drawn[-1] == (1, 1)
    assert (np.diff(x) >= 0).all()
    assert (np.diff(y) >= 0).all()
    assert (x < 0.1).sum() > (x > 0.9).sum()


def test_the_interval_has_the_width_that_theory_gives() -> None:
    members, others = gaussian_scores(1.0, 300)
    area = auc(members, others)
    low, high = auc_interval(members, others)
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)  # Hanley and McNeil 1982
    variance = (area * (1 - area) + 299 * (q1 - area**2) + 299 * (q2 - area**2)) / 300**2
    assert low < area < high
    assert high - low == pytest.approx(2 * 1.96 * math.sqrt(variance), rel=0.15)


def test_the_interval_covers_the_true_area_about_as_often_as_it_says() -> None:
    true = 0.5 * (1 + math.erf(0.5 / 2))  # the difference of two is N(0.5, 2)
    pairs = [auc_interval(*gaussian_scores(0.5, 60, seed)) for seed in range(100)]
    assert 0.86 <= np.mean([low <= true <= high for low, high in pairs]) <= 1


def test_ties_and_the_seed_are_respected_by_the_interval() -> None:
    assert auc_interval([1.0, 1.0], [1.0]) == (0.5, 0.5)
    assert auc_interval([2.0, 3.0], [1.0, 0.0]) == (1.0, 1.0)
    members, others = gaussian_scores(0.5, 40)
    assert auc_interval(members, others, seed=1) == auc_interval(members, others, seed=1)
    assert auc_interval(members, others, seed=1) != auc_interval(members, others, seed=2)


@pytest.mark.parametrize(("members", "others"), [([], [1.0]), ([1.0], []), ([math.nan], [1.0])])
def test_what_is_no_score_is_refused(members: list[float], others: list[float]) -> None:
    for measure in (roc, auc, auc_interval):
        with pytest.raises(ValueError, match="none of them NaN"):
            measure(members, others)
