"""Whether an update holds noise of the size that its defense declares.

A value is signal plus noise, ``g = s + n`` with n ~ N(0, sigma^2). Whatever the signal is, it can
only make values larger in distribution (Anderson's inequality): for a row of n values

    P(sum g^2 <= q) <= P(sigma^2 chi2_n <= q),   and   P(|g| < t sigma) <= erf(t / sqrt 2)

for each value. Rows, or values, that are smaller than noise would leave them prove that the noise
is too weak, without any assumption about the signal. Where the update without the defense is known,
what it explains is subtracted first, so that hardly any signal is left.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from scipy.special import betainc, chdtr, erfinv
from torch import Tensor

from keyhole.defenses.noise_model import Noise
from keyhole.defenses.traces import Sighting, Trace, TraceCheck

LEAST = 0.5
"""Noise below this share of the declared standard deviation is too weak."""
MOST = 2.0
"""Noise that could be up to this multiple of the declared is seen well enough to pass."""
LEVEL = 1e-6
"""The probability of an alarm though the noise has at least ``LEAST`` of its size."""
NEAR = (0.3, 0.1, 0.03, 0.01)
"""Values are counted that are nearer to zero than so many of the weakest allowed deviations."""
QUANTILES = (0.1, 0.03, 0.01, 0.003)
"""The quantiles of magnitudes by which noise is bounded from above if the signal is not known."""
FEWEST = 30
"""The fewest values below a quantile that bound anything."""
LARGEST = 1 << 20
"""The most values of a tensor that are counted and sorted."""
NAMED = 3
"""Tensors that a sentence names."""


@dataclass(frozen=True)
class NoiseTrace(Trace):
    """There is noise of the declared size.

    Args:
        noise: Where noise is in ``update.gradient()``, and how strong, by parameter.
        of_training: Whether that depends on how the client trained.
    """

    noise: Mapping[str, Noise] = field(default_factory=dict)
    of_training: bool = False

    kind: ClassVar[str] = "noise"

    def check(self, seen: Sighting) -> TraceCheck:
        found = measure_tensors(self.noise, seen)
        if not found:
            return TraceCheck(self.kind, 0.0, 0.0, None, "no tensor of the update has room to tell")
        level = LEVEL / len(found)
        weak = [name for name, each in found.items() if each.doubt < level]
        ratio, declared = pool([each for n, each in found.items() if n in weak or not weak])
        if weak and seen.reference is None:
            ratio = min(ratio, LEAST)
        passed: bool | None = not weak
        about = "noise of about" if seen.reference is not None else "noise of at most"
        words = f"{about} {ratio * declared:.2g}, {declared:.2g} declared"
        if weak:
            words += f", too little in {describe_tensors(weak, len(found))}"
        elif seen.reference is None and ratio > MOST:
            passed = None
            words = f"noise of {declared:.2g} is declared; the signal is too strong to see it"
        elif ratio < LEAST:
            passed = None
            words += ": too few values to be sure"
        return TraceCheck(self.kind, declared, ratio * declared, passed, words)


@dataclass(frozen=True)
class TensorNoise:
    """The noise in one tensor.

    Args:
        ratio: Its standard deviation in units of the declared; without a reference, an upper bound.
        variance: The declared variance, a mean over noisy rows.
        values: How many values have it.
        doubt: The probability of so small values if the noise had ``LEAST`` of its size.
    """

    ratio: float
    variance: float
    values: int
    doubt: float


def measure_tensors(noise: Mapping[str, Noise], seen: Sighting) -> dict[str, TensorNoise]:
    """The noise in every parameter that is declared to have some."""
    gradient = {n: g for n, g in seen.update.gradient().items() if n in noise}
    reference = None if seen.reference is None else seen.reference.gradient()
    scale = 0.0 if reference is None else find_signal(gradient, reference)
    found = {}
    for name, tensor in gradient.items():  # one after another: float64 of all needs much memory
        noisy = noise[name].variance.to(tensor.device) > 0
        if noisy.any() and tensor[0].numel():
            values, known = tensor.double(), reference is not None
            if reference is not None:
                values = values - scale * reference[name].double()
            found[name] = measure_tensor(noise[name], values, noisy, signal_known=known)
    return found


def find_signal(gradient: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """What multiple of the gradient without the defense is in a gradient: clipping scales it."""
    along, length = 0.0, 0.0
    for name, tensor in gradient.items():
        own = reference[name].double().flatten()
        along += float(tensor.double().flatten() @ own)
        length += float(own @ own)
    return along / length if length > 0 else 0.0


def measure_tensor(
    noise: Noise, values: Tensor, noisy: Tensor, *, signal_known: bool
) -> TensorNoise:
    """The noise in one tensor ``[K, ...]``, of whose rows the ``noisy`` ones should have it."""
    variance, energy = noise.variance.to(values)[noisy], noise.energy(values)[noisy]
    if signal_known and noise.sigma is None:
        # Which rows have how much noise was guessed with the signal; without it, the order tells.
        energy = noise.energy(values).sort(descending=True).values[: len(variance)]
        variance = variance.sort(descending=True).values
    row = values[0].numel() if noise.bins is None else count_bins(noise, values)
    scaled = (energy / variance).cpu()
    tests = [len(scaled) * float(chdtr(row, row * float(scaled.min()) / LEAST**2))]
    tests.append(float(chdtr(row * len(scaled), row * float(scaled.sum()) / LEAST**2)))
    ratio = math.sqrt(float(scaled.mean()))
    if noise.sigma is not None:
        sizes = take_some(values.flatten()).abs().cpu() / noise.sigma
        tests += count_small(sizes)
        if not signal_known:
            ratio = min(ratio, bound_ratio(sizes))
    count = row * len(scaled)
    return TensorNoise(ratio, float(variance.mean()), count, min(tests) * len(tests))


def count_bins(noise: Noise, values: Tensor) -> int:
    """In how many independent numbers of a row the noise is."""
    assert noise.bins is not None
    return round(values.shape[1] * float(noise.bins.trace()))


def count_small(sizes: Tensor) -> list[float]:
    """For each threshold, the probability of so many values below it, in declared deviations.

    Of n values at least k are below it with the probability I_share(k, n - k + 1).
    """
    found, total, values = [], len(sizes), sizes.numpy()
    for near in NEAR:
        count = np.count_nonzero(values < near * LEAST)  # torch takes twice as long
        share = math.erf(near / math.sqrt(2))
        found.append(float(betainc(count, total - count + 1, share)) if count else 1.0)
    return found


def take_some(values: Tensor) -> Tensor:
    """Every value, or every second, third, ... of a large tensor."""
    return values[:: max(1, -(-len(values) // LARGEST))]


def bound_ratio(sizes: Tensor) -> float:
    """An upper bound of the noise's standard deviation, from the smallest magnitudes."""
    ordered = sizes.sort().values
    bounds = [
        float(ordered[math.ceil(share * len(ordered))]) / (math.sqrt(2) * float(erfinv(share)))
        for share in QUANTILES
        if share * len(ordered) >= FEWEST
    ]
    return min(bounds, default=math.inf)


def pool(found: list[TensorNoise]) -> tuple[float, float]:
    """Ratio and declared standard deviation of several tensors, means over their values."""
    total = sum(each.values for each in found)
    declared = sum(each.values * each.variance for each in found) / total
    measured = sum(each.values * each.variance * each.ratio**2 for each in found) / total
    return math.sqrt(measured / declared), math.sqrt(declared)


def describe_tensors(names: list[str], total: int) -> str:
    """Which tensors lack noise.

    >>> describe_tensors(["a", "b"], 2), describe_tensors(["a"], 2)
    ('every tensor', '1 of 2 tensors: a')
    """
    if len(names) == total:
        return "every tensor"
    more = ", ..." if len(names) > NAMED else ""
    return f"{len(names)} of {total} tensors: {', '.join(names[:NAMED])}{more}"
