"""Compares images: pure functions over batches that have one data range.

All take ``found`` and ``truth`` of shape ``[n, C, H, W]`` and return one value per image, ``[n]``.
The data range is never guessed; it must be passed.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from keyhole.errors import DoesNotFit

GAUSSIAN_WINDOW = 11
UNIFORM_WINDOW = 7
SIGMA = 1.5


def check_images(found: Tensor, truth: Tensor, data_range: float) -> tuple[Tensor, Tensor]:
    """Both batches as float64; raises :class:`DoesNotFit` if they cannot be compared."""
    if found.shape != truth.shape or found.ndim != 4:
        raise DoesNotFit(
            f"cannot compare images of shapes {tuple(found.shape)} and {tuple(truth.shape)}: "
            "both must be [n, C, H, W]"
        )
    if not data_range > 0:
        raise DoesNotFit(f"the data range must be positive, got {data_range}")
    return found.double(), truth.double()


def mse(found: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """Mean squared error over pixels, relative to ``data_range^2``.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        truth: True images, likewise.
        data_range: The difference of white and black.

    >>> mse(torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2), data_range=1.0)
    tensor([1.], dtype=torch.float64)
    """
    found, truth = check_images(found, truth, data_range)
    return ((found - truth) / data_range).square().flatten(1).mean(1)


def psnr(found: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """Peak signal-to-noise ratio in dB, ``-10 log10(mse)``; infinite for equal images.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        truth: True images, likewise.
        data_range: The difference of white and black.

    >>> black, grey = torch.zeros(1, 1, 2, 2), torch.full((1, 1, 2, 2), 0.1)
    >>> psnr(grey, black, data_range=1.0).round(decimals=3)
    tensor([20.], dtype=torch.float64)
    """
    return -10 * mse(found, truth, data_range=data_range).log10()


def ssim(found: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """Structural similarity: 11x11 Gaussian window, sigma 1.5, K1 = .01, K2 = .03.

    The mean runs over the positions where the window fits, as in scikit-image and the original
    paper. For images below 11 px per side the window is 7x7 and uniform; below 7 px SSIM is not
    defined.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        truth: True images, likewise.
        data_range: The difference of white and black.

    >>> image = torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    >>> ssim(image, image, data_range=1.0).round(decimals=6)
    tensor([1.], dtype=torch.float64)
    """
    found, truth = check_images(found, truth, data_range)
    side = min(found.shape[-2:])
    if side < UNIFORM_WINDOW:
        raise DoesNotFit(f"SSIM needs images of at least {UNIFORM_WINDOW} px per side, got {side}")
    down, across = (window_means(n, gaussian=side >= GAUSSIAN_WINDOW) for n in found.shape[-2:])
    down, across = down.to(found), across.to(found).T

    def mean(x: Tensor) -> Tensor:
        return down @ x @ across

    mean_f, mean_t = mean(found), mean(truth)
    var_f = mean(found * found) - mean_f * mean_f
    var_t = mean(truth * truth) - mean_t * mean_t
    covariance = mean(found * truth) - mean_f * mean_t
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    shared = (2 * mean_f * mean_t + c1) * (2 * covariance + c2)
    total = (mean_f * mean_f + mean_t * mean_t + c1) * (var_f + var_t + c2)
    return (shared / total).flatten(1).mean(1)


@cache
def window_means(side: int, *, gaussian: bool) -> Tensor:
    """A band matrix ``[positions, side]`` that averages over every position of the window."""
    width = GAUSSIAN_WINDOW if gaussian else UNIFORM_WINDOW
    offset = torch.arange(width, dtype=torch.double) - width // 2
    weights = (-0.5 * (offset / SIGMA) ** 2).exp() if gaussian else torch.ones_like(offset)
    band = torch.zeros(side - width + 1, side, dtype=torch.double)
    for position in range(len(band)):
        band[position, position : position + width] = weights / weights.sum()
    return band


def fft2d(found: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
    """The MJP paper's distance in Fourier space, as its code computes it: without conjugation.

    ``|1 - sum(UV) / sqrt(sum(U^2) sum(V^2))|`` over the 2-D Fourier coefficients U, V of all
    channels. With conjugation it would be the cosine distance of the pixels.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        truth: True images, likewise.
        data_range: The difference of white and black.
    """
    found, truth = check_images(found, truth, data_range)
    U = torch.fft.fft2(found / data_range).flatten(1)
    V = torch.fft.fft2(truth / data_range).flatten(1)
    scale = ((U * U).sum(1) * (V * V).sum(1)).sqrt()
    # Both sums are real up to rounding: a real image's spectrum times itself, not conjugated, sums
    # to the correlation of the image with its mirror. An all-black image has no direction.
    return torch.where(scale.abs() > 0, (1 - (U * V).sum(1) / scale).abs(), 1.0).double()
