"""Random fields over the picture plane: what clouds, ice and warped glass are made of."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def random_field(
    count: int,
    size: tuple[int, int],
    amplitude: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """White noise with its frequencies weighted: ``[count, H, W]``, each of mean 0, variance 1.

    ``amplitude`` maps frequencies, in cycles per pixel, to weights.
    """
    height, width = size
    white = torch.randn(count, height, width, generator=generator, device=generator.device)
    down = torch.fft.fftfreq(height, device=white.device)[:, None]
    across = torch.fft.rfftfreq(width, device=white.device)[None]
    field = torch.fft.irfft2(torch.fft.rfft2(white) * amplitude(down.hypot(across)), s=size)
    centred = field - field.mean((-2, -1), keepdim=True)
    spread = centred.square().mean((-2, -1), keepdim=True).sqrt()
    unit: Tensor = centred / spread.clamp_min(1e-12)
    return unit


def clouds(
    count: int, size: tuple[int, int], generator: torch.Generator, *, decay: float = 1.8
) -> Tensor:
    """Plasma: amplitudes fall as ``frequency^-decay``, so that it looks alike at every scale."""
    lowest = 1 / max(size)
    return random_field(count, size, lambda f: f.clamp_min(lowest) ** -decay, generator)


def smooth(
    count: int, size: tuple[int, int], generator: torch.Generator, *, sigma: float
) -> Tensor:
    """White noise under a Gaussian window of ``sigma`` pixels, wrapped at the edges."""
    return random_field(
        count, size, lambda f: (-2 * (math.pi * sigma * f).square()).exp(), generator
    )
