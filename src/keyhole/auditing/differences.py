"""By how much a metric differs between two findings, and whether that can be told from chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

import numpy as np

from keyhole.auditing.finding import Finding
from keyhole.auditing.pairing import Positions
from keyhole.metrics import summarise
from keyhole.metrics.statistics import LEVEL, RESAMPLES

MIN_IMAGES = 6
"""The smallest number of images for a clear difference: five that all agree do so by chance one
time in sixteen."""


class Leak(StrEnum):
    """What the attacker of the second run sees, compared with the first run."""

    MORE = "more"
    LESS = "less"
    SAME = "same"
    UNCLEAR = "unclear"
    """The interval contains zero, or there are too few images."""


@dataclass(frozen=True)
class Difference:
    """A metric in two findings, and by how much it differs.

    Args:
        first: The first finding's mean over the images that are compared.
        second: The second finding's mean.
        difference: Second minus first: the mean difference of paired images, or the difference of
            the two means if images are not paired.
        low: Lower end of the difference's 95% bootstrap interval.
        high: Upper end of the interval.
        count: The number of images compared; for labels, of clients; if images are not paired, of
            the smaller run.
        leak: Whether the second run's attacker sees more, less or the same.
        per_image: The difference of each image; empty if images are not paired.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    count: int
    leak: Leak
    per_image: tuple[float, ...]


def compare_metric(
    first: Finding, second: Finding, name: str, positions: Positions | None
) -> Difference:
    """Compares one metric over the images at ``positions``, or over all images of each run."""
    values = [np.asarray(f.metrics[name].per_image) for f in (first, second)]
    leaks_high = first.describe_metric(name).leaks_high
    if positions is None or not positions.first:
        low, high = compute_unpaired_interval(*values)
        pairs: tuple[float, ...] = ()
        count = min(map(len, values))
    else:
        chosen = (positions.first, positions.second)
        values = [v[list(p)] for v, p in zip(values, chosen, strict=True)]
        summary = summarise((values[1] - values[0]).tolist(), worst_is_high=leaks_high)
        low, high, pairs, count = summary.low, summary.high, summary.per_image, len(values[0])
    means = [fmean(v) for v in values]
    change = fmean(pairs) if pairs else means[1] - means[0]
    leak = judge_difference(low, high, count, pairs, leaks_high=leaks_high)
    return Difference(means[0], means[1], change, low, high, count, leak, pairs)


def compute_unpaired_interval(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """The 95% bootstrap interval of the difference of two means over different images."""
    draw = np.random.default_rng(0)
    means = [v[draw.integers(0, v.size, (RESAMPLES, v.size))].mean(axis=1) for v in (first, second)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means[1] - means[0], [tail, 1 - tail])
    return float(low), float(high)


def judge_difference(
    low: float, high: float, count: int, pairs: Sequence[float], *, leaks_high: bool
) -> Leak:
    """Whether the second run's attacker sees more, less or the same, or whether it is unclear."""
    if pairs and not any(pairs):
        return Leak.SAME
    if count < MIN_IMAGES or low <= 0 <= high:
        return Leak.UNCLEAR
    return Leak.MORE if (low > 0) == leaks_high else Leak.LESS
