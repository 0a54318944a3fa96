"""How well members are told from non-members, from the scores an attacker gave to each.

Scores are higher where the attacker believes more in a member; only their order counts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from keyhole.metrics.statistics import LEVEL, RESAMPLES

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

LIMITS = (0.001, 0.01)
"""False-positive rates at which the true-positive rate is told, as in Carlini et al. 2022."""
DRAWN = 200
"""Points of a curve that is kept to be drawn, at most."""
RESAMPLED_AT_ONCE = 100


@dataclass(frozen=True)
class Roc:
    """The receiver operating characteristic: a point for each threshold, from (0, 0) to (1, 1).

    ``found[i]`` members and ``alarms[i]`` non-members score at least ``thresholds[i]``; equal
    scores pass together, so that a curve over ties is straight between its points.
    """

    found: Floats
    alarms: Floats
    thresholds: Floats

    @property
    def true_positive_rate(self) -> Floats:
        return np.asarray(self.found / self.found[-1])

    @property
    def false_positive_rate(self) -> Floats:
        return np.asarray(self.alarms / self.alarms[-1])

    def drawn(self, most: int = DRAWN) -> list[tuple[float, float]]:
        """Some points ``(fpr, tpr)`` of the curve, the ends among them, densest at low FPR."""
        x, y = self.false_positive_rate, self.true_positive_rate
        level = (np.diff(x[:-1]) == 0) & (np.diff(x[1:]) == 0)
        upright = (np.diff(y[:-1]) == 0) & (np.diff(y[1:]) == 0)
        corners = np.flatnonzero(np.concatenate([[True], ~(level | upright), [True]]))
        spread = np.linspace(0, 1, min(most, len(corners))) ** (2 if len(corners) > most else 1)
        kept = corners[np.unique(np.round(spread * (len(corners) - 1)).astype(int))]
        return [(float(x[i]), float(y[i])) for i in kept]


@dataclass(frozen=True)
class RateAt:
    """The share of members found while at most ``limit`` of the non-members raise an alarm.

    ``resolution`` is the least false-positive rate above zero that so few non-members can show;
    where ``limit`` is below it, ``rate`` is the one without a single false alarm.
    """

    limit: float
    rate: float
    resolution: float

    @property
    def resolved(self) -> bool:
        """Whether there are enough non-members to speak of so low a rate."""
        return self.limit >= self.resolution * (1 - 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "resolved": self.resolved}


def roc(members: ArrayLike, others: ArrayLike) -> Roc:
    """The exact curve, ties and all.

    >>> curve = roc([3, 2], [2, 1])
    >>> curve.drawn()
    [(0.0, 0.0), (0.0, 0.5), (0.5, 1.0), (1.0, 1.0)]
    """
    ours, theirs = scores(members), scores(others)
    both = np.concatenate([ours, theirs])
    distinct, place = np.unique(-both, return_inverse=True)
    found = np.bincount(place[: len(ours)], minlength=len(distinct)).cumsum()
    alarms = np.bincount(place[len(ours) :], minlength=len(distinct)).cumsum()
    return Roc(
        np.concatenate([[0.0], found]),
        np.concatenate([[0.0], alarms]),
        np.concatenate([[math.inf], -distinct]),
    )


def auc(members: ArrayLike, others: ArrayLike) -> float:
    """P(member > non-member) + P(equal) / 2: the area under the curve (Mann and Whitney 1947).

    >>> auc([3, 2], [2, 1])
    0.875
    """
    ours, theirs = scores(members), np.sort(scores(others))
    below = np.searchsorted(theirs, ours, "left") + np.searchsorted(theirs, ours, "right")
    return float(below.sum() / (2 * len(ours) * len(theirs)))


def auc_interval(members: ArrayLike, others: ArrayLike, *, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the AUC; members and non-members are each drawn anew."""
    ours, theirs = scores(members), np.sort(scores(others))
    left = np.searchsorted(theirs, ours, "left")
    right = np.searchsorted(theirs, ours, "right")
    draw = np.random.default_rng(seed)
    areas = []
    for start in range(0, RESAMPLES, RESAMPLED_AT_ONCE):
        rows = min(RESAMPLED_AT_ONCE, RESAMPLES - start)
        weights = how_often(draw, rows, len(ours))
        least = np.cumsum(how_often(draw, rows, len(theirs)), axis=1)
        beaten = np.concatenate([np.zeros((rows, 1)), least], axis=1)
        wins = (weights * (beaten[:, left] + beaten[:, right])).sum(axis=1)
        areas.append(wins / (2 * len(ours) * len(theirs)))
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(np.concatenate(areas), [tail, 1 - tail])
    return float(low), float(high)


def how_often(draw: np.random.Generator, rows: int, count: int) -> Floats:
    """How often each of ``count`` things comes up in ``count`` draws, ``[rows, count]``."""
    drawn = draw.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
    found = np.bincount(drawn.ravel(), minlength=rows * count).reshape(rows, count)
    return found.astype(np.float64)


def rate_at(curve: Roc, limit: float) -> RateAt:
    """The greatest true-positive rate at a false-positive rate of at most ``limit``.

    Nothing is read in between two points: a threshold must exist that does it.

    >>> rate_at(roc([3, 2], [2, 1]), 0.01)
    RateAt(limit=0.01, rate=0.5, resolution=0.5)
    """
    others = curve.alarms[-1]
    allowed = curve.alarms <= limit * others * (1 + 1e-9)
    return RateAt(limit, float(curve.true_positive_rate[allowed].max()), float(1 / others))


def balanced_accuracy(curve: Roc) -> float:
    """max over thresholds of ``(TPR + 1 - FPR) / 2``: chosen in hindsight, so rather too high.

    >>> balanced_accuracy(roc([3, 2], [2, 1]))
    0.75
    """
    return float(np.max(curve.true_positive_rate + 1 - curve.false_positive_rate) / 2)


def scores(values: ArrayLike) -> Floats:
    """Scores as an array; none at all, or one that is no number, is refused."""
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.size == 0 or np.isnan(array).any():
        raise ValueError("scores of members and of non-members are needed, none of them NaN")
    return array
