"""Intervals of shares and of means, beside scipy's own distributions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from keyhole.metrics.proportion import mean_interval, proportion_interval


@pytest.mark.parametrize(("count", "total"), [(0, 1), (0, 24), (3, 24), (12, 24), (24, 24)])
def test_a_share_has_the_exact_interval_of_clopper_and_pearson(count: int, total: int) -> None:
    expected = stats.binomtest(count, total).proportion_ci(0.95, method="exact")
    assert proportion_interval(count, total) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("count", "total"), [(-1, 4), (5, 4), (0, 0)])
def test_what_is_no_share_is_refused(count: int, total: int) -> None:
    with pytest.raises(ValueError, match="no share"):
        proportion_interval(count, total)


def test_a_mean_of_few_values_has_students_interval() -> None:
    values = [0.91, 0.94, 0.92]
    expected = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert mean_interval(values) == pytest.approx((np.mean(values), *expected))


def test_one_value_has_no_interval() -> None:
    assert mean_interval([0.5]) == (0.5, 0.5, 0.5)
