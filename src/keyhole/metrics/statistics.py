"""From one value an image to what may be said of them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

RESAMPLES = 2000
LEVEL = 0.95


@dataclass(frozen=True)
class Summary:
    """Mean with its 95% bootstrap interval, and the image that leaks most."""

    mean: float
    low: float
    high: float
    worst: float
    per_image: tuple[float, ...]

    def to_json(self) -> dict[str, float | list[float]]:
        return {**asdict(self), "per_image": list(self.per_image)}


def summarise(values: Sequence[float], *, worst_is_high: bool, seed: int = 0) -> Summary:
    """``worst`` is worst for privacy: the highest similarity, or the least distance.

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
    """Percentile interval of the mean over resampled images."""
    if array.size == 1:
        return float(array[0]), float(array[0])
    draws = np.random.default_rng(seed).integers(0, array.size, (RESAMPLES, array.size))
    means = array[draws].mean(axis=1)
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
