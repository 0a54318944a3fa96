"""Augmentation that a gradient can pass, so that true and drawn images are shown alike.

A discriminator that sees only altered images cannot learn the true ones by heart, and the generator
does not learn to draw the alterations (Zhao et al. 2020). Images are ``[n, C, H, W]`` in [-1, 1];
every image is altered by draws of its own, on the device it is on.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SHIFT = 1 / 8
"""How far an image moves at most, as a share of its sides."""
HOLE = 1 / 2
"""The sides of what is covered, as a share of the image's."""


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """Other colours, moved, and partly covered."""
    return covered(moved(coloured(images, draw), draw), draw)


def uniform(images: Tensor, draw: torch.Generator) -> Tensor:
    """A number in [0, 1) for each image, ``[n, 1, 1, 1]``."""
    size = (len(images), 1, 1, 1)
    return torch.rand(size, generator=draw, device=images.device, dtype=images.dtype)


def below(bound: int, images: Tensor, draw: torch.Generator) -> Tensor:
    """A whole number in [0, bound) for each image, ``[n, 1]``."""
    size = (len(images), 1)
    return torch.randint(bound, size, generator=draw, device=images.device)


def flipped(images: Tensor, draw: torch.Generator) -> Tensor:
    """Half of them mirrored, left to right."""
    return torch.where(uniform(images, draw) < 0.5, images, images.flip(-1))


def coloured(images: Tensor, draw: torch.Generator) -> Tensor:
    """Brightness + U(-1/2, 1/2), saturation x U(0, 2), contrast x U(1/2, 3/2)."""
    images = images + uniform(images, draw) - 0.5
    grey = images.mean(1, keepdim=True)
    images = grey + 2 * uniform(images, draw) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (0.5 + uniform(images, draw)) * (images - mean)


def moved(images: Tensor, draw: torch.Generator) -> Tensor:
    """Moved down and across by up to an eighth; what comes in is grey."""
    count, channels, height, width = images.shape
    down, across = (round(side * SHIFT) for side in (height, width))
    padded = F.pad(images, (across, across, down, down))
    rows = torch.arange(height, device=images.device) + below(2 * down + 1, images, draw)
    columns = torch.arange(width, device=images.device) + below(2 * across + 1, images, draw)
    rows = rows[:, None, :, None].expand(count, channels, height, padded.shape[-1])
    columns = columns[:, None, None, :].expand(count, channels, height, width)
    return padded.gather(2, rows).gather(3, columns)


def covered(images: Tensor, draw: torch.Generator) -> Tensor:
    """A grey rectangle of half the sides, its centre anywhere (DeVries and Taylor 2017)."""
    outside = [
        hole(side, images, draw).view(len(images), 1, *shape)
        for side, shape in ((images.shape[-2], (-1, 1)), (images.shape[-1], (1, -1)))
    ]
    return images * (outside[0] | outside[1])


def hole(side: int, images: Tensor, draw: torch.Generator) -> Tensor:
    """Which places along an axis are not covered, ``[n, side]``."""
    size = round(side * HOLE)
    first = below(side + 1, images, draw) - size // 2
    place = torch.arange(side, device=images.device)
    return (place < first) | (place >= first + size)
