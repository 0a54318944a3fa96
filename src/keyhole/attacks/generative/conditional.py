"""A generator that is told what to draw, and whose every stage can be entered."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]

FEATURES = (320, 256, 160, 96)
"""Of the grids 4x4, 8x8, 16x16, 32x32: 2.97 million weights, 5.9 MB in float16."""
EPS = 1e-4
"""Added to variances: weights kept in float16 must not make them vanish."""


class ConditionalGenerator(nn.Module):
    """Codes ``[n, latent]`` and classes to images ``[n, C, H, W]`` in [0, 1].

    Stage 0 makes a code a small grid of ``features[0]`` channels; each of the next doubles the grid
    to as many as ``features`` says, by a residual block (Miyato et al. 2018); the last makes it
    pixels, cut to H x W. Classes are numbers ``[n]``, or shares ``[n, classes]`` that add up to 1:
    they set the scale and shift that follow each normalisation (Dumoulin et al. 2017), so that a
    mixture of classes can be drawn as well.

    In evaluation mode an image depends on its own code and class alone.

    >>> drawn = ConditionalGenerator((3, 12, 14), latent=8, classes=5, features=(8, 4))
    >>> drawn(torch.randn(2, 8), torch.tensor([0, 4])).shape
    torch.Size([2, 3, 12, 14])
    """

    def __init__(
        self,
        shape: Shape = (3, 32, 32),
        *,
        latent: int = 128,
        classes: int = 10,
        features: tuple[int, ...] = FEATURES,
    ) -> None:
        super().__init__()
        self.shape, self.latent, self.classes, self.features = shape, latent, classes, features
        rows, columns = (-(-side // 2 ** (len(features) - 1)) for side in shape[1:])
        stages: list[nn.Module] = [Seed(latent, (features[0], rows, columns))]
        self.entries: list[tuple[int, ...]] = [(latent,), (features[0], rows, columns)]
        """The shape of what each stage takes."""
        for wide, narrow in pairwise(features):
            stages.append(Doubling(wide, narrow, classes))
            rows, columns = 2 * rows, 2 * columns
            self.entries.append((narrow, rows, columns))
        stages.append(Paint(features[-1], shape[0], classes))
        self.stages = nn.ModuleList(stages)

    def codes(self, count: int, draw: torch.Generator) -> Tensor:
        """Standard normal codes ``[count, latent]``, where the network is."""
        codes = torch.randn(count, self.latent, generator=draw, device=draw.device)
        return codes.to(next(self.parameters()))

    def shares(self, classes: Tensor) -> Tensor:
        """Class numbers ``[n]`` as shares ``[n, classes]``; shares stay what they are."""
        if classes.is_floating_point():
            return classes
        numbers = torch.arange(self.classes, device=classes.device)
        return (classes[:, None] == numbers).to(next(self.parameters()))

    def stage(self, number: int, features: Tensor, classes: Tensor) -> Tensor:
        """What one stage makes of what it takes, ``[n, *entries[number]]``."""
        made: Tensor = self.stages[number](features, self.shares(classes))
        return made

    def from_stage(self, number: int, features: Tensor, classes: Tensor) -> Tensor:
        """The images that come of entering at stage ``number`` with its features."""
        shares = self.shares(classes)
        for stage in self.stages[number:]:
            features = stage(features, shares)
        return self.cut(features)

    def forward(self, codes: Tensor, classes: Tensor) -> Tensor:
        return self.from_stage(0, codes, classes)

    def cut(self, images: Tensor) -> Tensor:
        """The middle H x W of what the last stage painted."""
        _, height, width = self.shape
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        return images[..., top : top + height, left : left + width]


class ClassNorm(nn.Module):
    """Batch normalisation; its scale and shift are the class's own.

    ``y = (x - mean) / sqrt(var + eps) * (1 + shares @ scale) + shares @ shift``.
    """

    mean: Tensor
    var: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(classes, features))
        self.shift = nn.Parameter(torch.zeros(classes, features))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("var", torch.ones(features))
        self.momentum = 0.1
        """How much of each batch goes into the running statistics."""

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        x = F.batch_norm(
            x, self.mean, self.var, training=self.training, momentum=self.momentum, eps=EPS
        )
        scale, shift = shares @ self.scale, shares @ self.shift
        return x * (1 + scale)[..., None, None] + shift[..., None, None]


class Seed(nn.Module):
    """A code to the first grid."""

    def __init__(self, latent: int, grid: Shape) -> None:
        super().__init__()
        self.grid = grid
        self.linear = nn.Linear(latent, math.prod(grid))

    def forward(self, codes: Tensor, shares: Tensor) -> Tensor:
        return torch.unflatten(self.linear(codes), 1, self.grid)


class Doubling(nn.Module):
    """A grid to one of twice its sides: two convolutions beside a straight way."""

    def __init__(self, wide: int, narrow: int, classes: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = ClassNorm(wide, classes), ClassNorm(narrow, classes)
        self.conv1 = nn.Conv2d(wide, narrow, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, padding=1)
        self.straight = nn.Conv2d(wide, narrow, 1, bias=False)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        y = self.conv1(doubled(F.relu(self.norm1(x, shares))))
        y = self.conv2(F.relu(self.norm2(y, shares)))
        summed: Tensor = y + doubled(self.straight(x))
        return summed


class Paint(nn.Module):
    """The last grid to pixels in [0, 1]."""

    def __init__(self, features: int, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = ClassNorm(features, classes)
        self.conv = nn.Conv2d(features, channels, 3, padding=1)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        painted: Tensor = self.conv(F.relu(self.norm(x, shares)))
        return painted.to(self.conv.weight.dtype).sigmoid()


def doubled(x: Tensor) -> Tensor:
    """Every pixel four times."""
    return F.interpolate(x, scale_factor=2, mode="nearest")
