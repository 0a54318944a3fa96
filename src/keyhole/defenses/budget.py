"""Privacy budgets, and what Gaussian noise really costs of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Budget:
    """A privacy budget: the mechanism is said to be (epsilon, delta)-differentially private.

    Args:
        epsilon: The bound on the privacy loss.
        delta: The probability with which it may be exceeded.
    """

    epsilon: float
    delta: float


def read_budget(telemetry: Mapping[str, float | int | str]) -> Budget | None:
    """The budget that a defense reports of itself; None if it reports none.

    >>> read_budget({"epsilon": "infinite", "delta": 1e-5})
    Budget(epsilon=inf, delta=1e-05)
    """
    epsilon, delta = telemetry.get("epsilon"), telemetry.get("delta")
    if epsilon is None or delta is None:
        return None
    return Budget(math.inf if isinstance(epsilon, str) else float(epsilon), float(delta))


def compute_gaussian_epsilon(sigma: float, delta: float) -> float:
    """The least epsilon of the Gaussian mechanism, exactly (Balle and Wang 2018, Theorem 8).

    Noise N(0, sigma^2) on a value that one person moves by at most 1 is (epsilon, delta)-private
    if and only if

        Phi(1 / (2 sigma) - epsilon sigma) - e^epsilon Phi(-1 / (2 sigma) - epsilon sigma) <= delta.

    Args:
        sigma: The noise's standard deviation in units of the sensitivity.
        delta: The probability with which epsilon may be exceeded.

    >>> round(compute_gaussian_epsilon(1.0, 1e-5), 2)
    4.38
    """
    from scipy.stats import norm  # defenses do not need it

    if sigma == 0:
        return math.inf

    def excess(epsilon: float) -> float:
        far = epsilon + float(norm.logcdf(-0.5 / sigma - epsilon * sigma))
        return float(norm.cdf(0.5 / sigma - epsilon * sigma)) - math.exp(min(far, 0.0)) - delta

    low, high = 0.0, 1.0
    while excess(high) > 0:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > 0 else (low, middle)
    return high
