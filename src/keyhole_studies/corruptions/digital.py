"""What handling an image as a file or a texture does to it."""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from keyhole_studies.corruptions.base import Corruption, Strengths
from keyhole_studies.corruptions.fields import smooth

LUMA = (0.299, 0.587, 0.114)
WAVE = 0.04
"""How smooth the elastic field is: its Gaussian window as a share of the picture's side."""


def pixelate(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Each pixel becomes the mean over the large pixel it lies in, ``1 / share`` wide and high.

    Large pixels that end inside a small one share it by area.
    """
    height, width = images.shape[-2:]
    return coarse(height, share).to(images) @ images @ coarse(width, share).to(images).T


def coarse(side: int, share: float) -> Tensor:
    """``[side, side]``: averages a line of pixels over its large ones."""
    large = max(round(side * share), 1)
    return overlaps(side, large) @ overlaps(large, side)


def overlaps(cells: int, pixels: int) -> Tensor:
    """For a line cut into ``cells``, and into ``pixels``: how much of each cell is which pixel.

    >>> overlaps(2, 3)
    tensor([[0.6667, 0.3333, 0.0000],
            [0.0000, 0.3333, 0.6667]])
    """
    cut, fine = torch.arange(cells + 1) / cells, torch.arange(pixels + 1) / pixels
    ends = torch.minimum(cut[1:, None], fine[None, 1:])
    starts = torch.maximum(cut[:-1, None], fine[None, :-1])
    return (ends - starts).clamp_min(0) * cells


def jpeg(images: Tensor, quality: float, generator: torch.Generator) -> Tensor:
    """Compresses each image, by itself, at Pillow's ``quality`` and reads it back."""
    encoded = (images * 255).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    decoded = np.stack([through_jpeg(image, round(quality)) for image in encoded])
    return torch.from_numpy(decoded).permute(0, 3, 1, 2).to(images) / 255


def through_jpeg(
    image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], quality: int
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A uint8 image ``[H, W, C]`` as it comes back from a JPEG file."""
    file = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(
        file, "JPEG", quality=quality
    )
    return np.asarray(Image.open(file)).reshape(image.shape)


def elastic(images: Tensor, pixels: float, generator: torch.Generator) -> Tensor:
    """Moves every place by a smooth random field, ``pixels`` far (root mean square) each way."""
    count, _, height, width = images.shape
    sigma = WAVE * min(height, width)
    across, down = (smooth(count, (height, width), generator, sigma=sigma) for _ in range(2))
    still = torch.eye(2, 3, device=images.device).expand(count, 2, 3)
    grid = F.affine_grid(still, list(images.shape), align_corners=False)
    moved = grid + 2 * pixels * torch.stack([across / width, down / height], dim=-1)
    return F.grid_sample(images, moved, padding_mode="reflection", align_corners=False)


def saturate(images: Tensor, factor: float, generator: torch.Generator) -> Tensor:
    """``g + factor (x - g)`` about each pixel's grey g: colours grow harsh."""
    weights = torch.tensor(LUMA, device=images.device).view(3, 1, 1)
    grey = (images * weights).sum(1, keepdim=True)
    return grey + factor * (images - grey)


DIGITAL = (
    Corruption(
        "pixelate",
        "digital",
        "fewer, larger pixels",
        pixelate,
        Strengths((0.9, 0.8, 0.7, 0.6, 0.5), (0.6, 0.5, 0.4, 0.3, 0.25)),
    ),
    Corruption(
        "jpeg",
        "digital",
        "JPEG compression",
        jpeg,
        Strengths((80, 65, 55, 45, 35), (25, 18, 14, 10, 7)),
    ),
    Corruption(
        "elastic",
        "digital",
        "warped by a smooth random field",
        elastic,
        Strengths((0.3, 0.45, 0.6, 0.8, 1.1), (1.5, 2.2, 3, 4, 5.5), in_pixels=True),
    ),
    Corruption(
        "saturate",
        "digital",
        "colours grow harsh",
        saturate,
        Strengths((1.3, 1.6, 2, 2.5, 3.2), (1.5, 2, 3, 5, 10)),
        needs_colour=True,
    ),
)
