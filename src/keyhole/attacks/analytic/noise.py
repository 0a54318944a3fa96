"""Noise and missing values in an update, as a known defense declares them, and what to do then."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.noise import known_noise
from keyhole.defenses.capabilities import Capability, Interval
from keyhole.defenses.noise_model import Noise
from keyhole.threat import Observation

CORRELATION = 0.9
"""Of neighbouring pixels; it only orders the directions from coarse to fine."""
BANDS = 16
"""Bands of coefficients that the Wiener filter scales separately."""


@dataclass(frozen=True)
class WhiteNoise:
    """Noise of standard deviation ``sigma`` on a matrix whose rows were multiplied by ``weights``.

    ``weights [K]`` are at most 1, and 0 for rows that are left out; None: all are 1.
    """

    sigma: float
    weights: Tensor | None = None

    @classmethod
    def from_noise(cls, noise: Noise | None) -> WhiteNoise:
        """Weights the rows so that all have the noise of the least noisy ones.

        If some rows have no noise, the noisy ones are left out.
        """
        if noise is None:
            return cls(0.0)
        if noise.sigma is not None:
            return cls(noise.sigma)
        deviation = noise.variance.sqrt()
        least = float(deviation.min())
        if least == 0:
            return cls(0.0, (deviation == 0).double())
        return cls(least, least / deviation)

    def weigh_rows(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Those of the numbered ``rows`` that are not left out, and their weights."""
        if self.weights is None:
            return rows, torch.ones(len(rows)).to(rows.device, torch.double)
        weights = self.weights.to(rows.device)[rows]
        return rows[weights > 0], weights[weights > 0]


def known_white_noise(observation: Observation, parameter: str) -> WhiteNoise:
    """The noise that a known defense declares in one parameter's gradient."""
    return WhiteNoise.from_noise(known_noise(observation).get(parameter))


def known_bounds(observation: Observation) -> dict[str, Interval]:
    """The bounds that a known defense declares for values missing in the update, in float64."""
    defense = observation.knowledge.defense_with(Capability.VALUES)
    declared = {} if defense is None else defense.possible_values(observation.update)
    return {name: values.map(Tensor.double) for name, values in declared.items()}


def weigh_bounds(bounds: Interval | None, rows: Tensor, weights: Tensor) -> Interval | None:
    """The bounds of some rows, each multiplied by its weight; None: all values are known."""
    if bounds is None:
        return None
    return bounds.map(lambda bound: bound.flatten(1)[rows] * weights[:, None])


def find_signal_directions(matrix: Tensor, sigma: float) -> Tensor:
    """Left singular vectors of ``matrix`` (at least one) that noise of ``sigma`` cannot explain."""
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    edge = sigma * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
    signal: Tensor = left[:, : max(1, int((values > edge).sum()))]
    return signal


def apply_wiener_filter(image: Tensor, noise_variance: float) -> Tensor:
    """The best linear estimate of ``image [C, H, W]`` under white noise of known variance.

    In the eigenbasis of a smooth image's correlation, coefficients are sorted from coarse to fine
    into bands. The signal power of a band is its measured power minus that of the noise, and its
    coefficients are multiplied by signal / (signal + noise).

    >>> flat = torch.ones(1, 8, 8, dtype=torch.double)
    >>> bool((apply_wiener_filter(flat, 0.0) - flat).abs().max() < 1e-9)
    True
    """
    (rows, down), (columns, across) = (correlation_eigenbasis(n, image) for n in image.shape[-2:])
    coefficients = down.T @ image @ across
    order = (rows[:, None] * columns[None, :]).flatten().argsort(descending=True)
    gain = torch.empty_like(coefficients[0]).flatten()
    for band in order.tensor_split(BANDS):
        power = float(coefficients.flatten(1)[:, band].square().mean())
        gain[band] = max(power - noise_variance, 0.0) / power if power > 0 else 0.0
    return down @ (coefficients * gain.view_as(coefficients[0])) @ across.T


def correlation_eigenbasis(side: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the pixels' correlation along one side of the image."""
    place = torch.arange(side).to(like)
    values, vectors = torch.linalg.eigh(CORRELATION ** (place[:, None] - place[None, :]).abs())
    return values, vectors
