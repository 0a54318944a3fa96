"""Blurs: each pixel becomes a mean over its neighbours."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole_studies.corruptions.base import Corruption, Strengths


def gaussian(images: Tensor, sigma: float, generator: torch.Generator) -> Tensor:
    """A Gaussian window, cut at 4 sigma."""
    y, x = offsets(math.ceil(4 * sigma), images)
    return convolve(images, (-(x * x + y * y) / (2 * sigma * sigma)).exp()[None])


def defocus(images: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """A disk with an edge one pixel soft: the picture of a point out of focus."""
    y, x = offsets(math.ceil(radius + 0.5), images)
    return convolve(images, (radius + 0.5 - x.hypot(y)).clamp(0, 1)[None])


def motion(images: Tensor, length: float, generator: torch.Generator) -> Tensor:
    """A line of that length through each pixel, in one direction per image."""
    angle = math.pi * torch.rand(len(images), generator=generator, device=images.device)
    return convolve(images, line(angle, length, images))


def zoom(images: Tensor, reach: float, generator: torch.Generator) -> Tensor:
    """The mean of the image enlarged 1 to 1 + ``reach`` times about its centre."""
    steps = 2 + math.ceil(reach * min(images.shape[-2:]) / 2)
    mean = torch.zeros_like(images)
    for factor in torch.linspace(1, 1 + reach, steps).tolist():
        shrink = torch.eye(2, 3, device=images.device) / factor
        grid = F.affine_grid(
            shrink.expand(len(images), 2, 3), list(images.shape), align_corners=False
        )
        mean += F.grid_sample(images, grid, padding_mode="border", align_corners=False) / steps
    return mean


def line(angle: Tensor, length: float, like: Tensor) -> Tensor:
    """A soft line of that length and one pixel's width at each angle: ``[n, k, k]``."""
    y, x = offsets(math.ceil(length / 2 + 0.5), like)
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    along, across = (x * cos + y * sin).abs(), (y * cos - x * sin).abs()
    return (length / 2 + 0.5 - along).clamp(0, 1) * (1 - across).clamp(0, 1)


def offsets(radius: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Rows and columns about a centre, ``[2 radius + 1, 2 radius + 1]`` each."""
    reach = torch.arange(-radius, radius + 1, device=like.device, dtype=like.dtype)
    rows, columns = torch.meshgrid(reach, reach, indexing="ij")
    return rows, columns


def convolve(images: Tensor, kernels: Tensor) -> Tensor:
    """Images mirrored at their edges, convolved with kernels ``[n or 1, k, k]`` scaled to sum 1."""
    radius = min(kernels.shape[-1] // 2, min(images.shape[-2:]) - 1)
    spare = kernels.shape[-1] // 2 - radius
    whole = kernels[..., spare : kernels.shape[-2] - spare, spare : kernels.shape[-1] - spare]
    weights = whole / whole.sum((-2, -1), keepdim=True)
    padded = F.pad(images, (radius,) * 4, mode="reflect")
    size = list(padded.shape[-2:])
    spectrum = torch.fft.rfft2(padded) * torch.fft.rfft2(weights, s=size)[:, None]
    # The kernel lies in the corner, so that the sum over it ends, not centres, at each pixel.
    blurred: Tensor = torch.fft.irfft2(spectrum, s=size)[..., 2 * radius :, 2 * radius :]
    return blurred


BLUR = (
    Corruption(
        "gaussian-blur",
        "blur",
        "a Gaussian window",
        gaussian,
        Strengths((0.4, 0.55, 0.7, 0.85, 1.1), (1, 2, 3, 4, 6), in_pixels=True),
    ),
    Corruption(
        "defocus-blur",
        "blur",
        "out of focus",
        defocus,
        Strengths((0.6, 0.8, 1.0, 1.4, 1.9), (3, 4, 6, 8, 10), in_pixels=True),
    ),
    Corruption(
        "motion-blur",
        "blur",
        "the camera moved along a line",
        motion,
        Strengths((1.5, 2.2, 3, 4, 5), (8, 12, 18, 26, 36), in_pixels=True),
    ),
    Corruption(
        "zoom-blur",
        "blur",
        "the camera moved forward",
        zoom,
        Strengths((0.05, 0.08, 0.12, 0.17, 0.24), (0.1, 0.15, 0.2, 0.26, 0.33)),
    ),
)
