"""A network that draws images from latent codes (Radford et al. 2016, DCGAN)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

SMALLEST_SIDE = 4
"""Drawing starts from a grid at least so large, and doubles it stage by stage."""


class Generator(nn.Module):
    """Latent codes ``[n, latent]`` to images ``[n, C, H, W]`` in [0, 1], for any size.

    The code becomes a small grid of features; every stage doubles the grid and halves the features,
    the last of which number ``features``; the last grid becomes pixels and is cut to H x W. Grids
    grow by interpolation: transposed convolutions leave a chequered pattern (Odena et al. 2016).

    Args:
        latent: Length of a code.
        shape: Channels, height and width of the images.
        features: Of the last stage.

    >>> Generator(16, (3, 25, 30))(torch.randn(2, 16)).shape
    torch.Size([2, 3, 25, 30])
    """

    def __init__(self, latent: int, shape: tuple[int, int, int], *, features: int = 12) -> None:
        super().__init__()
        self.latent = latent
        self.shape = shape
        channels, height, width = shape
        doublings = max(0, int(math.log2(min(height, width) / SMALLEST_SIDE)))
        rows, columns = (-(-side // 2**doublings) for side in (height, width))
        wide = features * 2**doublings
        stages: list[nn.Module] = [make_start(latent, wide, rows, columns)]
        for _ in range(doublings):
            stages.append(make_doubling(wide, wide // 2))
            wide //= 2
        stages.append(nn.Sequential(nn.Conv2d(wide, channels, 3, padding=1), nn.Sigmoid()))
        self.stages = nn.Sequential(*stages)

    def sample_codes(self, count: int, draw: torch.Generator) -> Tensor:
        """Standard normal codes ``[count, latent]``, where the network is."""
        return torch.randn(count, self.latent, generator=draw).to(next(self.parameters()))

    def forward(self, codes: Tensor) -> Tensor:
        return self.crop(self.stages(codes))

    def crop(self, images: Tensor) -> Tensor:
        """The middle H x W of what the last stage drew."""
        _, height, width = self.shape
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        return images[..., top : top + height, left : left + width]


def make_start(latent: int, features: int, rows: int, columns: int) -> nn.Module:
    """The first stage: a code becomes a grid of features."""
    return nn.Sequential(
        nn.Linear(latent, features * rows * columns, bias=False),
        nn.Unflatten(1, (features, rows, columns)),
        nn.BatchNorm2d(features),
        nn.ReLU(),
    )


def make_doubling(features: int, fewer: int) -> nn.Module:
    """A stage: a grid becomes one of twice its sides, with fewer features."""
    return nn.Sequential(
        nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(features, fewer, 3, padding=1, bias=False),
        nn.BatchNorm2d(fewer),
        nn.ReLU(),
    )
