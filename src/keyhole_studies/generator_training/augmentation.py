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
"""How far an image is shifted at most, as a share of its sides."""
HOLE = 1 / 2
"""The sides of what is covered, as a share of the image's."""


def augment_images(images: Tensor, draw: torch.Generator) -> Tensor:
    """Changes colours, shifts images and covers a part of each."""
    return cover_part(shift_images(change_colours(images, draw), draw), draw)


def draw_uniform(images: Tensor, draw: torch.Generator) -> Tensor:
    """A number in [0, 1) for each image, ``[n, 1, 1, 1]``."""
    size = (len(images), 1, 1, 1)
    return torch.rand(size, generator=draw, device=images.device, dtype=images.dtype)


def draw_integers(bound: int, images: Tensor, draw: torch.Generator) -> Tensor:
    """A whole number in [0, bound) for each image, ``[n, 1]``."""
    size = (len(images), 1)
    return torch.randint(bound, size, generator=draw, device=images.device)


def flip_some(images: Tensor, draw: torch.Generator) -> Tensor:
    """Mirrors half of them, left to right."""
    return torch.where(draw_uniform(images, draw) < 0.5, images, images.flip(-1))


def change_colours(images: Tensor, draw: torch.Generator) -> Tensor:
    """Brightness + U(-1/2, 1/2), saturation x U(0, 2), contrast x U(1/2, 3/2)."""
    images = images + draw_uniform(images, draw) - 0.5
    grey = images.mean(1, keepdim=True)
    images = grey + 2 * draw_uniform(images, draw) * (images - grey)
    mean = images.mean((1, 2, 3), keepdim=True)
    return mean + (0.5 + draw_uniform(images, draw)) * (images - mean)


def shift_images(images: Tensor, draw: torch.Generator) -> Tensor:
    """Shifts each image down and across by up to an eighth; what comes in is grey."""
    count, channels, height, width = images.shape
    down, across = (round(side * SHIFT) for side in (height, width))
    padded = F.pad(images, (across, across, down, down))
    rows = torch.arange(height, device=images.device) + draw_integers(2 * down + 1, images, draw)
    columns = torch.arange(width, device=images.device) + draw_integers(
        2 * across + 1, images, draw
    )
    rows = rows[:, None, :, None].expand(count, channels, height, padded.shape[-1])
    columns = columns[:, None, None, :].expand(count, channels, height, width)
    return padded.gather(2, rows).gather(3, columns)


def cover_part(images: Tensor, draw: torch.Generator) -> Tensor:
    """Covers each image by a grey rectangle of half its sides (DeVries and Taylor 2017)."""
    outside = [
        uncovered_places(side, images, draw).view(len(images), 1, *shape)
        for side, shape in ((images.shape[-2], (-1, 1)), (images.shape[-1], (1, -1)))
    ]
    return images * (outside[0] | outside[1])


def uncovered_places(side: int, images: Tensor, draw: torch.Generator) -> Tensor:
    """Which places along an axis are not covered, ``[n, side]``."""
    size = round(side * HOLE)
    first = draw_integers(side + 1, images, draw) - size // 2
    place = torch.arange(side, device=images.device)
    return (place < first) | (place >= first + size)
