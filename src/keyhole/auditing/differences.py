"""By how much a metric differs between two findings, and whether that can be told from chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean
from typing import Any

import numpy as np

from keyhole.auditing.finding import Finding
from keyhole.auditing.pairing import Places
from keyhole.metrics import summarise
from keyhole.metrics.statistics import LEVEL, RESAMPLES

FEWEST = 6
"""Images from which on a difference can be clear: five that all agree do so by chance once in
sixteen times."""


class Leak(StrEnum):
    """What the second run's attacker sees, compared with the first one's."""

    MORE = "more"
    LESS = "less"
    SAME = "same"
    UNCLEAR = "unclear"
    """The interval holds zero, or there are too few images to say."""


@dataclass(frozen=True)
class Difference:
    """A metric in two findings: the means over what is compared, and by how much they differ.

    ``difference`` is second minus first, with a 95% bootstrap interval: of the images' own
    differences where they are paired, else of the two means.
    """

    first: float
    second: float
    difference: float
    low: float
    high: float
    count: int
    """Images compared; of labels, clients; where they are not paired, of the smaller run."""
    leak: Leak
    per_image: tuple[float, ...]
    """Each image's difference; empty where images are not paired."""


def compare_metric(first: Finding, second: Finding, name: str, places: Places | None) -> Difference:
    """One metric, over the images at ``places``, or else over all images of each run."""
    values = [np.asarray(f.metrics[name].per_image) for f in (first, second)]
    leaks_high = first.describe_metric(name).leaks_high
    if places is None or not places.first:
        low, high = unpaired_interval(*values)
        pairs: tuple[float, ...] = ()
        count = min(map(len, values))
    else:
        values = [v[list(p)] for v, p in zip(values, (places.first, places.second), strict=True)]
        summary = summarise((values[1] - values[0]).tolist(), worst_is_high=leaks_high)
        low, high, pairs, count = summary.low, summary.high, summary.per_image, len(values[0])
    means = [fmean(v) for v in values]
    change = fmean(pairs) if pairs else means[1] - means[0]
    leak = judge_difference(low, high, count, pairs, leaks_high=leaks_high)
    return Difference(means[0], means[1], change, low, high, count, leak, pairs)


def unpaired_interval(
    first: np.ndarray[Any, Any], second: np.ndarray[Any, Any]
) -> tuple[float, float]:
    """The 95% bootstrap interval of the difference of two means over images of their own."""
    draw = np.random.default_rng(0)
    means = [v[draw.integers(0, v.size, (RESAMPLES, v.size))].mean(axis=1) for v in (first, second)]
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means[1] - means[0], [tail, 1 - tail])
    return float(low), float(high)


def judge_difference(
    low: float, high: float, count: int, pairs: Sequence[float], *, leaks_high: bool
) -> Leak:
    """Whether the second run's attacker sees more, less or the same, as far as one can say."""
    if pairs and not any(pairs):
        return Leak.SAME
    if count < FEWEST or low <= 0 <= high:
        return Leak.UNCLEAR
    return Leak.MORE if (low > 0) == leaks_high else Leak.LESS
