"""Summarises one value per image: mean, bootstrap interval, worst case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """The mean with its 95% bootstrap interval, and the value of the image that leaks most.

    Args:
        mean: The mean over images.
        low: Lower end of the interval.
        high: Upper end of the interval.
        worst: The value that is worst for privacy.
        per_image: One value per image.
    """

    mean: float
    low: float
    high: float
    worst: float
    per_image: tuple[float, ...]

    def to_json(self) -> dict[str, float | list[float]]:
        return {**asdict(self), "per_image": list(self.per_image)}


def summarise(values: Sequence[float], *, worst_is_high: bool, seed: int = 0) -> Summary:
    """Summarises one value per image.

    Args:
        values: One value per image.
        worst_is_high: Whether a high value is worst for privacy, as for a similarity.
        seed: Seed of the bootstrap.

    >>> summarise([1.0, 3.0], worst_is_high=True).mean
    2.0
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0 or not np.isfinite(array).all():
        raise ValueError("a summary needs at least one value, all finite")
    low, high = bootstrap(array, seed=seed)
    worst = float(array.max() if worst_is_high else array.min())
    return Summary(float(array.mean()), low, high, worst, tuple(float(v) for v in array))


def bootstrap(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float64]], *, seed: int
) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean over images."""
    if array.size == 1:
        return float(array[0]), float(array[0])
    draws = np.random.default_rng(seed).integers(0, array.size, (RESAMPLES, array.size))
    means = array[draws].mean(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
