"""Weather and light: fog, frost, snow, brightness, contrast."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from keyhole_studies.corruptions.base import Corruption, Strengths
from keyhole_studies.corruptions.blur import convolve, line
from keyhole_studies.corruptions.fields import clouds, smooth

AIRLIGHT = 0.9
ICE = (0.82, 0.90, 0.97)
FLAKE = 1 / 150
"""The size of a snowflake as a share of the picture's side."""


def fog(images: Tensor, density: float, generator: torch.Generator) -> Tensor:
    """``x T + A (1 - T)`` (Koschmieder's law): ``T = exp(-density c)`` of the light comes through.

    c is cloudy, in [0.5, 1.5]; A is the brightness of the fog.
    """
    depth = 0.5 + torch.special.ndtr(clouds(len(images), plane(images), generator))
    through: Tensor = (-density * depth).exp()[:, None]
    return images * through + AIRLIGHT * (1 - through)


def frost(images: Tensor, cover: float, generator: torch.Generator) -> Tensor:
    """Veins of ice where fields cross zero, in patches that close in as ``cover`` grows."""
    size, side = plane(images), min(plane(images))
    patches = clouds(len(images), size, generator)
    fine, coarse = (
        smooth(len(images), size, generator, sigma=max(share * side, 0.7)).abs()
        for share in (0.008, 0.025)
    )
    veins = torch.maximum((-fine / 0.25).exp(), (-coarse / 0.12).exp())
    thick = torch.special.ndtr(patches + 3 * (cover - 0.5))
    weight: Tensor = (cover * thick * (0.55 + 0.65 * veins)).clamp(0, 1)[:, None]
    ice = torch.tensor(ICE, device=images.device).view(3, 1, 1)
    if images.shape[1] == 1:
        ice = ice.mean(0, keepdim=True)
    return images * (1 - weight) + ice * weight


def snow(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """White flakes that fall in one direction per image, and a white haze behind them."""
    size, side = plane(images), min(plane(images))
    flake = max(FLAKE * side, 0.45)
    field = smooth(len(images), size, generator, sigma=flake)
    flakes = ((torch.special.ndtr(field) - (1 - 0.25 * amount)) / (0.1 * amount)).clamp(0, 1)
    slant = torch.rand(len(images), generator=generator, device=images.device) - 0.5
    streaks = convolve(flakes[:, None], line(math.pi / 2 + slant, 6 * flake, images))
    white = (streaks * 1.5).clamp(0, 1)
    return 1 - (1 - images) * (1 - white) * (1 - 0.45 * amount)


def brightness(images: Tensor, amount: float, generator: torch.Generator) -> Tensor:
    """Raises V of HSV (the largest channel) by ``amount``; hue and saturation stay."""
    value = images.amax(1, keepdim=True)
    raised = (value + amount).clamp_max(1)
    return torch.where(value > 0, images * (raised / value.clamp_min(1e-6)), raised)


def contrast(images: Tensor, kept: float, generator: torch.Generator) -> Tensor:
    """``m + kept (x - m)`` about each channel's mean m."""
    mean = images.mean((-2, -1), keepdim=True)
    return mean + kept * (images - mean)


def plane(images: Tensor) -> tuple[int, int]:
    return images.shape[-2], images.shape[-1]


WEATHER = (
    Corruption(
        "fog",
        "weather",
        "cloudy light between camera and scene",
        fog,
        Strengths((0.15, 0.3, 0.5, 0.75, 1.1), (0.4, 0.65, 0.95, 1.3, 1.8)),
    ),
    Corruption(
        "frost",
        "weather",
        "ice on the lens",
        frost,
        Strengths((0.3, 0.4, 0.5, 0.62, 0.75), (0.45, 0.56, 0.68, 0.8, 0.92)),
    ),
    Corruption(
        "snow",
        "weather",
        "falling flakes and haze",
        snow,
        Strengths((0.15, 0.25, 0.35, 0.5, 0.7), (0.3, 0.45, 0.6, 0.8, 1.0)),
    ),
    Corruption(
        "brightness",
        "weather",
        "more light",
        brightness,
        Strengths((0.06, 0.12, 0.18, 0.24, 0.32), (0.1, 0.2, 0.3, 0.4, 0.5)),
    ),
    Corruption(
        "contrast",
        "weather",
        "less difference of light",
        contrast,
        Strengths((0.75, 0.55, 0.4, 0.28, 0.15), (0.4, 0.3, 0.2, 0.1, 0.05)),
    ),
)
