"""How well an attacker's scores separate members from non-members.

The higher a score, the more likely the attacker finds a member; only the order of scores counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keyhole.metrics.statistics import LEVEL, RESAMPLES

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LIMITS = (0.001, 0.01)
"""False-positive rates at which the true-positive rate is reported (Carlini et al. 2022)."""
MAX_POINTS = 200
"""The greatest number of points of a curve that are stored for a plot."""
RESAMPLED_AT_ONCE = 100


@dataclass(frozen=True)
class Roc:
    """The receiver operating characteristic: one point per threshold, from (0, 0) to (1, 1).

    Point i gives the shares of members and of non-members that score at least ``thresholds[i]``.
    Equal scores share one threshold, so that the curve is straight across ties.
    """

    true_positive_rate: Floats
    false_positive_rate: Floats
    thresholds: Floats
    nonmembers: int
    """The number of non-members."""

    def plot_points(self, most: int = MAX_POINTS) -> list[tuple[float, float]]:
        """At most ``most`` points ``(fpr, tpr)`` with both ends, densest at low FPR."""
        x, y = self.false_positive_rate, self.true_positive_rate
        vertical = (np.diff(x[:-1]) == 0) & (np.diff(x[1:]) == 0)
        horizontal = (np.diff(y[:-1]) == 0) & (np.diff(y[1:]) == 0)
        corners = np.flatnonzero(np.concatenate([[True], ~(vertical | horizontal), [True]]))
        shares = np.linspace(0, 1, min(most, len(corners))) ** (2 if len(corners) > most else 1)
        chosen = corners[np.unique(np.round(shares * (len(corners) - 1)).astype(int))]
        return [(float(x[i]), float(y[i])) for i in chosen]


@dataclass(frozen=True)
class RateAt:
    """The true-positive rate ``rate`` at a false-positive rate of at most ``limit``.

    ``resolution`` is the least false-positive rate above zero that the number of non-members
    allows. If ``limit`` is below it, ``rate`` is the one without a single false positive.
    """

    limit: float
    rate: float
    resolution: float

    @property
    def resolved(self) -> bool:
        """Whether there are enough non-members to measure at so low a limit."""
        return self.limit >= self.resolution * (1 - 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "resolved": self.resolved}


def roc(members: ArrayLike, others: ArrayLike) -> Roc:
    """The exact curve of the scores of members and of others.

    >>> curve = roc([3, 2], [2, 1])
    >>> curve.plot_points()
    [(0.0, 0.0), (0.0, 0.5), (0.5, 1.0), (1.0, 1.0)]
    """
    from sklearn.metrics import roc_curve

    inside, outside = check_scores(members), check_scores(others)
    is_member = np.repeat([True, False], [len(inside), len(outside)])
    scores = np.nan_to_num(np.concatenate([inside, outside]))  # scikit-learn takes no infinities
    fpr, tpr, thresholds = roc_curve(is_member, scores, drop_intermediate=False)
    return Roc(tpr, fpr, thresholds, len(outside))


def auc(members: ArrayLike, others: ArrayLike) -> float:
    """P(member > non-member) + P(equal) / 2: the area under the curve (Mann and Whitney 1947).

    Args:
        members: Scores of members, ``[n]``; greater ones say "member".
        others: Scores of others, ``[m]``.

    >>> auc([3, 2], [2, 1])
    0.875
    """
    from scipy.stats import rankdata  # scipy.stats takes long to import

    inside, outside = check_scores(members), check_scores(others)
    ranks = rankdata(np.concatenate([inside, outside]))[: len(inside)]
    wins = ranks.sum() - len(inside) * (len(inside) + 1) / 2  # exact; the curve's trapezoids round
    return float(wins / (len(inside) * len(outside)))


def auc_interval(members: ArrayLike, others: ArrayLike, *, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the AUC; members and others are resampled separately."""
    inside, outside = check_scores(members), np.sort(check_scores(others))
    left = np.searchsorted(outside, inside, "left")
    right = np.searchsorted(outside, inside, "right")
    generator = np.random.default_rng(seed)
    areas = []
    for start in range(0, RESAMPLES, RESAMPLED_AT_ONCE):
        rows = min(RESAMPLED_AT_ONCE, RESAMPLES - start)
        weights = resample_counts(generator, rows, len(inside))
        totals = np.cumsum(resample_counts(generator, rows, len(outside)), axis=1)
        below = np.concatenate([np.zeros((rows, 1)), totals], axis=1)
        wins = (weights * (below[:, left] + below[:, right])).sum(axis=1)
        areas.append(wins / (2 * len(inside) * len(outside)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(areas), [tail, 1 - tail])
    return float(low), float(high)


def resample_counts(generator: np.random.Generator, rows: int, count: int) -> Floats:
    """How often each of ``count`` items is drawn in ``count`` draws, ``[rows, count]``."""
    draws = generator.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
    counts = np.bincount(draws.ravel(), minlength=rows * count).reshape(rows, count)
    return counts.astype(np.float64)


def rate_at(curve: Roc, limit: float) -> RateAt:
    """The greatest true-positive rate at a false-positive rate of at most ``limit``.

    Points are not interpolated: a threshold with this rate exists.

    >>> rate_at(roc([3, 2], [2, 1]), 0.01)
    RateAt(limit=0.01, rate=0.5, resolution=0.5)
    """
    allowed = curve.false_positive_rate <= limit * (1 + 1e-9)
    return RateAt(limit, float(curve.true_positive_rate[allowed].max()), 1 / curve.nonmembers)


def balanced_accuracy(curve: Roc) -> float:
    """The maximum over thresholds of ``(TPR + 1 - FPR) / 2``, chosen in hindsight: optimistic.

    >>> balanced_accuracy(roc([3, 2], [2, 1]))
    0.75
    """
    return float(np.max(curve.true_positive_rate + 1 - curve.false_positive_rate) / 2)


def check_scores(values: ArrayLike) -> Floats:
    """Scores as an array; raises :class:`ValueError` if there are none, or any is NaN."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.size == 0 or np.isnan(array).any():
        raise ValueError("scores of members and of non-members are needed, none of them NaN")
    return array
