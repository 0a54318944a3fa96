"""What an attacker does about Gaussian noise whose strength it knows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.noise import known_noise
from keyhole.defenses.noise_model import Noise
from keyhole.threat import Observation

CORRELATION = 0.9
"""Of neighbouring pixels; it only orders the directions from coarse to fine."""

BANDS = 16


@dataclass(frozen=True)
class WhiteNoise:
    """Noise of one deviation ``sigma`` on a matrix whose rows were multiplied by ``weights``.

    ``weights [K]`` are at most 1, and 0 for rows that are not worth looking at; None: all are 1.
    """

    sigma: float
    weights: Tensor | None = None

    @classmethod
    def of(cls, noise: Noise | None) -> WhiteNoise:
        """Rows of little noise count in full, others by their share of it.

        Beside rows without any noise the noisy ones are left out.
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

    def weigh(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Those of some rows that are worth looking at, by number, and their weights."""
        if self.weights is None:
            return rows, torch.ones(len(rows)).to(rows.device, torch.double)
        weights = self.weights.to(rows.device)[rows]
        return (rows[weights > 0], weights[weights > 0])


def white_noise(observation: Observation, parameter: str) -> WhiteNoise:
    """What a known defense declares of the noise in one parameter's gradient."""
    return WhiteNoise.of(known_noise(observation).get(parameter))


def signal_directions(matrix: Tensor, sigma: float) -> Tensor:
    """Left singular vectors of ``matrix`` (at least one) that noise of ``sigma`` cannot explain."""
    left, values, _ = torch.linalg.svd(matrix, full_matrices=False)
    edge = sigma * (math.sqrt(matrix.shape[0]) + math.sqrt(matrix.shape[1]))
    signal: Tensor = left[:, : max(1, int((values > edge).sum()))]
    return signal


def wiener(image: Tensor, noise_variance: float) -> Tensor:
    """The best linear guess of ``image [C, H, W]`` under white noise of known variance.

    In the eigenbasis of a smooth image's correlation, coefficients are sorted from coarse to fine
    into bands; each band's signal power is its measured power less the noise's, and its
    coefficients are shrunk by signal / (signal + noise).

    >>> flat = torch.ones(1, 8, 8, dtype=torch.double)
    >>> bool((wiener(flat, 0.0) - flat).abs().max() < 1e-9)
    True
    """
    (rows, down), (columns, across) = (eigenbasis(n, image) for n in image.shape[-2:])
    inside = down.T @ image @ across
    order = (rows[:, None] * columns[None, :]).flatten().argsort(descending=True)
    gain = torch.empty_like(inside[0]).flatten()
    for band in order.tensor_split(BANDS):
        power = float(inside.flatten(1)[:, band].square().mean())
        gain[band] = max(power - noise_variance, 0.0) / power if power > 0 else 0.0
    return down @ (inside * gain.view_as(inside[0])) @ across.T


def eigenbasis(side: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the correlation along one side of the image."""
    place = torch.arange(side).to(like)
    values, vectors = torch.linalg.eigh(CORRELATION ** (place[:, None] - place[None, :]).abs())
    return values, vectors
