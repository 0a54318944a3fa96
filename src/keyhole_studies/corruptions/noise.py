"""Noise on each pixel of each channel alone."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole_studies.corruptions.base import Corruption, Strengths


def gaussian(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """``x + sigma e``, e from N(0, 1)."""
    return images + sigma * normal(images, generator)


def shot(images: Tensor, photons: float, generator: torch.Generator) -> Tensor:
    """``Poisson(x p) / p``: a white pixel receives p photons on average."""
    return torch.poisson(images * photons, generator=generator) / photons


def impulse(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Black or white, equally often, in a share of the places."""
    drawn = torch.rand(images.shape, generator=generator, device=images.device)
    salted = images.masked_fill(drawn > 1 - share / 2, 1.0)
    return salted.masked_fill(drawn < share / 2, 0.0)


def speckle(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """``x (1 + sigma e)``, e from N(0, 1)."""
    return images * (1 + sigma * normal(images, generator))


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(like.shape, generator=generator, device=like.device)


NOISE = (
    Corruption(
        "gaussian-noise",
        "noise",
        "as in low light",
        gaussian,
        Strengths((0.04, 0.06, 0.08, 0.10, 0.13), (0.08, 0.12, 0.18, 0.26, 0.38)),
    ),
    Corruption(
        "shot-noise",
        "noise",
        "light is counted in photons",
        shot,
        Strengths((400, 200, 100, 70, 45), (60, 25, 12, 6, 3)),
    ),
    Corruption(
        "impulse-noise",
        "noise",
        "single pixels lost to black or white",
        impulse,
        Strengths((0.01, 0.02, 0.03, 0.05, 0.08), (0.03, 0.06, 0.1, 0.17, 0.27)),
    ),
    Corruption(
        "speckle-noise",
        "noise",
        "grows with brightness",
        speckle,
        Strengths((0.06, 0.09, 0.12, 0.16, 0.2), (0.15, 0.22, 0.32, 0.45, 0.6)),
    ),
)
