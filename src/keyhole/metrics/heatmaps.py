"""Compares explanations of an image: heat maps overlaid on the image, and heat maps alone."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.metrics.image import mse, psnr, ssim

PEAK = 255.0
"""The greatest value of an 8-bit image."""
CAP = 100.0
"""dB of equal images. Unequal 8-bit images of up to 226 px per side have less: at least one of
``3 H W`` values differs by one, which gives ``10 log10(255^2 * 3 H W)``."""
IMAGE_SHARE = 0.5
"""The share of the image in an overlay."""


def jet(heat: Tensor) -> Tensor:
    """Maps heat ``[n, H, W]`` in [0, 1] to colours from blue over green to red: ``[n, 3, H, W]``.

    Each of red, green and blue is ``clamp(1.5 - |4 heat - c|, 0, 1)`` with c = 3, 2, 1.

    >>> jet(torch.tensor([[[0.0, 0.5, 1.0]]]))[0, :, 0].T
    tensor([[0.0000, 0.0000, 0.5000],
            [0.5000, 1.0000, 0.5000],
            [0.5000, 0.0000, 0.0000]])
    """
    centres = torch.tensor([3.0, 2.0, 1.0]).to(heat).view(1, 3, 1, 1)
    return (1.5 - (4 * heat[:, None] - centres).abs()).clamp(0, 1)


def overlay_heat_maps(images: Tensor, maps: Tensor) -> Tensor:
    """Blends coloured heat maps with the images that they explain: uint8 ``[n, 3, H, W]``.

    Args:
        images: ``[n, 1 or 3, H, W]`` in [0, 1].
        maps: ``[n, H, W]`` in [0, 1].
    """
    fits = images.ndim == 4 and images.shape[1] in (1, 3)
    if not fits or maps.shape != images[:, 0].shape:
        raise DoesNotFit(
            f"heat maps {list(maps.shape)} do not fit images {list(images.shape)}: "
            "pass maps [n, H, W] and images [n, 1 or 3, H, W]"
        )
    mixed = IMAGE_SHARE * images.clamp(0, 1) + (1 - IMAGE_SHARE) * jet(maps.to(images))
    return (PEAK * mixed).round().to(torch.uint8)


def to_grey(maps: Tensor) -> Tensor:
    """Heat maps ``[n, H, W]`` in [0, 1] as grey images ``[n, 1, H, W]`` from 0 to 255."""
    return PEAK * maps[:, None]


def compare_heat_maps(images: Tensor, clean: Tensor, other: Tensor) -> dict[str, dict[str, Tensor]]:
    """``mse``, ``psnr`` and ``ssim``, ``[n]`` each, of ``overlay`` (on the image) and bare ``map``.

    Args:
        images: The images that the maps explain, ``[n, 1 or 3, H, W]`` in [0, 1].
        clean: Heat maps ``[n, H, W]`` in [0, 1].
        other: The heat maps that are compared with them.
    """
    return {
        "overlay": similarity(overlay_heat_maps(images, clean), overlay_heat_maps(images, other)),
        "map": similarity(to_grey(clean), to_grey(other)),
    }


def similarity(clean: Tensor, other: Tensor) -> dict[str, Tensor]:
    """``mse``, ``psnr`` and ``ssim`` of images ``[n, C, H, W]`` from 0 to 255, ``[n]`` each.

    These are the TIP paper's for overlays: the mean squared error is in squared grey levels, PSNR
    has the peak 255 and is :data:`CAP` for equal images.

    >>> black = torch.zeros(1, 3, 8, 8)
    >>> {name: float(value) for name, value in similarity(black, black).items()}
    {'mse': 0.0, 'psnr': 100.0, 'ssim': 1.0}
    """
    return {
        "mse": mse(other, clean, data_range=PEAK) * PEAK**2,
        "psnr": psnr(other, clean, data_range=PEAK).clamp(max=CAP),
        "ssim": ssim(other, clean, data_range=PEAK),
    }
