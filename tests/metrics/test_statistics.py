from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyhole.metrics import summarise

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@given(numbers)
def test_the_interval_lies_around_the_mean_within_the_values(values: list[float]) -> None:
    summary = summarise(values, worst_is_high=True)
    slack = 1e-6 * (1 + max(abs(v) for v in values))
    assert summary.mean == pytest.approx(float(np.mean(values)), abs=slack)
    assert min(values) - slack <= summary.low <= summary.high <= max(values) + slack
    assert summary.worst == max(values)
    assert summary.per_image == tuple(values)


def test_worst_is_what_leaks_most() -> None:
    values = [3.0, 1.0, 2.0]
    assert summarise(values, worst_is_high=True).worst == 3
    assert summarise(values, worst_is_high=False).worst == 1


def test_a_single_value_is_its_own_interval() -> None:
    summary = summarise([7.5], worst_is_high=True)
    assert (summary.mean, summary.low, summary.high) == (7.5, 7.5, 7.5)


def test_the_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        summary = summarise(draws.normal(3, 2, 40).tolist(), worst_is_high=True)
        covered += summary.low <= 3 <= summary.high
    assert 0.88 <= covered / 200 <= 0.99


def test_the_interval_has_the_width_that_theory_gives() -> None:
    values = np.random.default_rng(0).normal(0, 1, 400)
    summary = summarise(values.tolist(), worst_is_high=True)
    expected = 2 * 1.96 * values.std() / math.sqrt(400)
    assert summary.high - summary.low == pytest.approx(expected, rel=0.1)


def test_the_seed_decides_the_interval() -> None:
    values = list(np.random.default_rng(0).normal(0, 1, 20))
    one, same = (summarise(values, worst_is_high=True, seed=1) for _ in range(2))
    other = summarise(values, worst_is_high=True, seed=2)
    assert one == same
    assert (one.low, one.high) != (other.low, other.high)


@pytest.mark.parametrize("values", [[], [1.0, math.nan], [math.inf]])
def test_what_cannot_be_summarised_is_refused(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least one value, all finite"):
        summarise(values, worst_is_high=True)


def test_a_summary_can_be_written_as_json() -> None:
    summary = summarise([1.0, 3.0], worst_is_high=True)
    written = json.loads(json.dumps(summary.to_json()))
    assert written.keys() == {"mean", "low", "high", "worst", "per_image"}
    assert written["per_image"] == [1.0, 3.0]
