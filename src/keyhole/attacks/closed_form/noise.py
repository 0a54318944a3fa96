"""What an attacker does about Gaussian noise whose strength it knows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from keyhole.threat import Observation

CORRELATION = 0.9
"""Of neighbouring pixels; it only orders the directions from coarse to fine."""

BANDS = 16


def known_noise(observation: Observation) -> float:
    """The noise's standard deviation per value of the mean gradient, if the attacker knows it.

    ``gaussian`` adds noise once to the whole update, ``dpsgd`` anew in every local step.
    """
    defense, update = observation.knowledge.defense, observation.update
    if defense is not None and defense.name == "gaussian":
        return float(defense.parameters["sigma"]) / (update.lr * update.steps)
    if defense is not None and defense.name == "dpsgd":
        on_the_sum = float(defense.parameters["noise"] * defense.parameters["clip"])
        return on_the_sum / (update.batch_size * math.sqrt(update.steps))
    return 0.0


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
