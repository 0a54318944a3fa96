"""How alike two explanations of an image are: heat maps as a reader sees them, and bare."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.metrics.image import mse, psnr, ssim

FULL = 255.0
"""The greatest value of a picture."""
CAP = 100.0
"""dB of equal pictures. Unequal ones of 8 bits and up to 226 px a side have less: at the least one
value of ``3 H W`` differs by one, ``10 log10(255^2 * 3 H W)``."""
IMAGE_SHARE = 0.5


def jet(heat: Tensor) -> Tensor:
    """Heat ``[n, H, W]`` in [0, 1] as colours from blue over green to red: ``[n, 3, H, W]``.

    Each of red, green and blue is ``clamp(1.5 - |4 heat - c|, 0, 1)`` with c = 3, 2, 1.

    >>> jet(torch.tensor([[[0.0, 0.5, 1.0]]]))[0, :, 0].T
    tensor([[0.0000, 0.0000, 0.5000],
            [0.5000, 1.0000, 0.5000],
            [0.5000, 0.0000, 0.0000]])
    """
    centres = torch.tensor([3.0, 2.0, 1.0]).to(heat).view(1, 3, 1, 1)
    return (1.5 - (4 * heat[:, None] - centres).abs()).clamp(0, 1)


def overlay(images: Tensor, maps: Tensor) -> Tensor:
    """Heat maps ``[n, H, W]``, coloured, half and half with images ``[n, 1 or 3, H, W]`` in [0, 1].

    Returns pictures, uint8 ``[n, 3, H, W]``.
    """
    fits = images.ndim == 4 and images.shape[1] in (1, 3)
    if not fits or maps.shape != images[:, 0].shape:
        raise DoesNotFit(
            f"heat maps {list(maps.shape)} do not lie on images {list(images.shape)}: "
            "they must be [n, H, W] on [n, 1 or 3, H, W]"
        )
    mixed = IMAGE_SHARE * images.clamp(0, 1) + (1 - IMAGE_SHARE) * jet(maps.to(images))
    return (FULL * mixed).round().to(torch.uint8)


def grey(maps: Tensor) -> Tensor:
    """Bare heat maps ``[n, H, W]`` in [0, 1] as pictures ``[n, 1, H, W]`` of 0 to 255."""
    return FULL * maps[:, None]


def similarity(clean: Tensor, other: Tensor) -> dict[str, Tensor]:
    """``mse``, ``psnr`` and ``ssim`` of pictures ``[n, C, H, W]`` of 0 to 255, ``[n]`` each.

    As the TIP paper compares overlays: the mean squared error is in squared steps of 255, PSNR has
    the peak 255 and is :data:`CAP` for equal pictures.

    >>> black = torch.zeros(1, 3, 8, 8)
    >>> {name: float(value) for name, value in similarity(black, black).items()}
    {'mse': 0.0, 'psnr': 100.0, 'ssim': 1.0}
    """
    return {
        "mse": mse(other, clean, data_range=FULL) * FULL**2,
        "psnr": psnr(other, clean, data_range=FULL).clamp(max=CAP),
        "ssim": ssim(other, clean, data_range=FULL),
    }
