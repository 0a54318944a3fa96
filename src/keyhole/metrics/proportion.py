"""Intervals of a share of images, and of a mean over a few seeds."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, stdev

from keyhole.metrics.statistics import LEVEL


def proportion_interval(count: int, total: int) -> tuple[float, float]:
    """The exact 95% interval of a share (Clopper and Pearson 1934).

    Unlike a bootstrap's, it does not shrink to nothing where no image was read: nobody who saw 0 of
    8 images read knows that the share is 0.

    Args:
        count: How many of the images.
        total: The number of images, at least 1.

    >>> [round(end, 3) for end in proportion_interval(0, 8)]
    [0.0, 0.369]
    """
    from scipy.special import betaincinv  # the inverse of Beta(a, b)'s distribution function

    if not 0 <= count <= total or total < 1:
        raise ValueError(f"{count} of {total} is no share")
    tail = (1 - LEVEL) / 2
    low = 0.0 if count == 0 else float(betaincinv(count, total - count + 1, tail))
    high = 1.0 if count == total else float(betaincinv(count + 1, total - count, 1 - tail))
    return low, high


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean of a few values, and its 95% interval by Student's t.

    One value has no interval that anybody could know: both ends are the value itself.

    Args:
        values: One value per seed, at least one.

    >>> [round(each, 3) for each in mean_interval([0.90, 0.92, 0.94])]
    [0.92, 0.87, 0.97]
    """
    from scipy.special import stdtrit  # the inverse of Student's distribution function

    mean = fmean(values)
    if len(values) < 2:
        return mean, mean, mean
    reach = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * stdev(values) / len(values) ** 0.5
    return mean, mean - reach, mean + reach
