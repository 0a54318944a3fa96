"""The discriminator that a generator is trained against."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

SMALLEST_SIDE = 4
"""Grids are halved while neither side falls below this."""


class Discriminator(nn.Module):
    """Images ``[n, C, H, W]`` in [-1, 1] and class numbers ``[n]`` to scores ``[n]``.

    Residual blocks, each of as many ``features``, whose sum over the last grid is ``h``; then

        score = w . h + b + embedding[class] . h

    (the projection of Miyato and Koyama 2018). Every matrix has spectral norm 1 (Miyato et al.
    2018), so that the score changes no faster than the image.
    """

    def __init__(
        self, channels: int, size: tuple[int, int], classes: int, features: tuple[int, ...]
    ) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        wide, side = channels, min(size)
        for number, narrow in enumerate(features):
            halves = side >= 2 * SMALLEST_SIDE
            blocks.append(Halving(wide, narrow, first=number == 0, halves=halves))
            wide, side = narrow, side // 2 if halves else side
        self.blocks = nn.Sequential(*blocks)
        self.score = bound_spectral_norm(nn.Linear(wide, 1))
        self.embedding = bound_spectral_norm(nn.Embedding(classes, wide))

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = images.contiguous(memory_format=torch.channels_last)
        summed = F.relu(self.blocks(x)).float().sum((2, 3))
        with torch.autocast(x.device.type, enabled=False):
            scores: Tensor = self.score(summed)[:, 0] + (self.embedding(classes) * summed).sum(1)
        return scores


class Halving(nn.Module):
    """A grid to one of half its sides (or as large): two convolutions beside a straight way."""

    def __init__(self, wide: int, narrow: int, *, first: bool, halves: bool) -> None:
        super().__init__()
        self.first, self.halves = first, halves
        self.conv1 = bound_spectral_norm(nn.Conv2d(wide, narrow, 3, padding=1))
        self.conv2 = bound_spectral_norm(nn.Conv2d(narrow, narrow, 3, padding=1))
        self.straight = bound_spectral_norm(nn.Conv2d(wide, narrow, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(F.relu(self.conv1(x if self.first else F.relu(x))))
        x = self.halved(x) if self.first else x
        x = self.straight(x)
        return self.halved(y) + (x if self.first else self.halved(x))

    def halved(self, x: Tensor) -> Tensor:
        return F.avg_pool2d(x, 2) if self.halves else x


class SpectralNorm(nn.Module):
    """A weight divided by its largest singular value, taken as a matrix ``[out, everything else]``.

    The singular vectors follow the weight by one step of power iteration each time it is used in
    training. torch's own would compute in bfloat16 under autocast; this one stays in float32.
    """

    left: Tensor
    right: Tensor

    def __init__(self, weight: Tensor, *, steps: int = 10) -> None:
        super().__init__()
        matrix = weight.detach().flatten(1)
        self.register_buffer("left", F.normalize(torch.randn(len(matrix)), dim=0))
        self.register_buffer("right", F.normalize(matrix.T @ self.left, dim=0))
        for _ in range(steps):
            self.follow(matrix)

    @torch.no_grad()
    def follow(self, matrix: Tensor) -> None:
        self.left.copy_(F.normalize(matrix @ self.right, dim=0))
        self.right.copy_(F.normalize(matrix.T @ self.left, dim=0))

    def forward(self, weight: Tensor) -> Tensor:
        with torch.autocast(weight.device.type, enabled=False):
            matrix = weight.flatten(1)
            if self.training:
                self.follow(matrix.detach())
            largest = self.left.clone() @ (matrix @ self.right.clone())
            return weight / largest


def bound_spectral_norm(layer: nn.Module) -> nn.Module:
    """The layer with its weight's spectral norm held at 1."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    parametrize.register_parametrization(layer, "weight", SpectralNorm(weight))
    return layer
