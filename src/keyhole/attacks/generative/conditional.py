"""A class-conditional generator that can be started at any of its stages."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Shape = tuple[int, int, int]

FEATURES = (320, 256, 160, 96)
"""Channels of the grids 4x4, 8x8, 16x16, 32x32: 2.97 million weights, 5.9 MB in float16."""
EPS = 1e-4
"""Added to variances, because weights stored in float16 must not make them vanish."""


class ConditionalGenerator(nn.Module):
    """Maps codes ``[n, latent]`` and classes to images ``[n, C, H, W]`` in [0, 1].

    Stage 0 maps a code to a small grid. Each following stage doubles the grid's sides by a residual
    block (Miyato et al. 2018). The last stage maps the grid to pixels, cropped to H x W. Classes
    are numbers ``[n]`` or shares ``[n, classes]`` that sum to 1. They set the scale and shift after
    each normalisation (Dumoulin et al. 2017), so that mixtures of classes are possible too.

    In evaluation mode an image depends only on its own code and class.

    Args:
        shape: Shape of the images, ``(C, H, W)``.
        latent: Length of a code.
        classes: The number of classes.
        features: Channels of the grids, from the smallest grid to the largest.

    >>> generator = ConditionalGenerator((3, 12, 14), latent=8, classes=5, features=(8, 4))
    >>> generator(torch.randn(2, 8), torch.tensor([0, 4])).shape
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
        stages: list[nn.Module] = [CodeToGrid(latent, (features[0], rows, columns))]
        self.stage_shapes: list[tuple[int, ...]] = [(latent,), (features[0], rows, columns)]
        """The shape of each stage's input."""
        for wide, narrow in pairwise(features):
            stages.append(UpsamplingBlock(wide, narrow, classes))
            rows, columns = 2 * rows, 2 * columns
            self.stage_shapes.append((narrow, rows, columns))
        stages.append(GridToPixels(features[-1], shape[0], classes))
        self.stages = nn.ModuleList(stages)

    def sample_codes(self, count: int, generator: torch.Generator) -> Tensor:
        """Standard normal codes ``[count, latent]`` on the network's device.

        Args:
            count: The number of codes.
            generator: Draws them.
        """
        codes = torch.randn(count, self.latent, generator=generator, device=generator.device)
        return codes.to(next(self.parameters()))

    def _class_shares(self, classes: Tensor) -> Tensor:
        """Class numbers ``[n]`` as shares ``[n, classes]``; shares are returned unchanged."""
        if classes.is_floating_point():
            return classes
        numbers = torch.arange(self.classes, device=classes.device)
        return (classes[:, None] == numbers).to(next(self.parameters()))

    def run_stage(self, number: int, features: Tensor, classes: Tensor) -> Tensor:
        """The output of one stage.

        Args:
            number: The number of the stage.
            features: Its inputs, ``[n, *stage_shapes[number]]``.
            classes: Numbers ``[n]`` or shares ``[n, classes]``.
        """
        output: Tensor = self.stages[number](features, self._class_shares(classes))
        return output

    def run_from_stage(self, number: int, features: Tensor, classes: Tensor) -> Tensor:
        """The images for inputs of any stage.

        Args:
            number: The number of the stage.
            features: Its inputs, ``[n, *stage_shapes[number]]``.
            classes: Numbers ``[n]`` or shares ``[n, classes]``.
        """
        shares = self._class_shares(classes)
        for stage in self.stages[number:]:
            features = stage(features, shares)
        return self._crop(features)

    def forward(self, codes: Tensor, classes: Tensor) -> Tensor:
        """The images for codes.

        Args:
            codes: ``[n, latent]``.
            classes: Numbers ``[n]`` or shares ``[n, classes]``.
        """
        return self.run_from_stage(0, codes, classes)

    def _crop(self, images: Tensor) -> Tensor:
        """The middle H x W pixels of the last stage's output."""
        _, height, width = self.shape
        top, left = (images.shape[-2] - height) // 2, (images.shape[-1] - width) // 2
        return images[..., top : top + height, left : left + width]


class ConditionalBatchNorm(nn.Module):
    """Batch normalisation with one scale and shift per class.

    ``y = (x - mean) / sqrt(var + eps) * (1 + shares @ scale) + shares @ shift``.

    Args:
        features: Channels of the grid.
        classes: The number of classes.
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
        """The share of each batch in the running statistics."""

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        """Normalises a grid.

        Args:
            x: ``[n, features, H, W]``.
            shares: How much of each class an image is, ``[n, classes]``.
        """
        x = F.batch_norm(
            x, self.mean, self.var, training=self.training, momentum=self.momentum, eps=EPS
        )
        scale, shift = shares @ self.scale, shares @ self.shift
        return x * (1 + scale)[..., None, None] + shift[..., None, None]


class CodeToGrid(nn.Module):
    """Maps a code to the first grid."""

    def __init__(self, latent: int, grid: Shape) -> None:
        super().__init__()
        self.grid = grid
        self.linear = nn.Linear(latent, math.prod(grid))

    def forward(self, codes: Tensor, shares: Tensor) -> Tensor:
        return torch.unflatten(self.linear(codes), 1, self.grid)


class UpsamplingBlock(nn.Module):
    """Doubles the sides of a grid: two convolutions and a shortcut."""

    def __init__(self, wide: int, narrow: int, classes: int) -> None:
        super().__init__()
        self.norm1 = ConditionalBatchNorm(wide, classes)
        self.norm2 = ConditionalBatchNorm(narrow, classes)
        self.conv1 = nn.Conv2d(wide, narrow, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(narrow, narrow, 3, padding=1)
        self.straight = nn.Conv2d(wide, narrow, 1, bias=False)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        y = self.conv1(upsample(F.relu(self.norm1(x, shares))))
        y = self.conv2(F.relu(self.norm2(y, shares)))
        summed: Tensor = y + upsample(self.straight(x))
        return summed


class GridToPixels(nn.Module):
    """Maps the last grid to pixels in [0, 1]."""

    def __init__(self, features: int, channels: int, classes: int) -> None:
        super().__init__()
        self.norm = ConditionalBatchNorm(features, classes)
        self.conv = nn.Conv2d(features, channels, 3, padding=1)

    def forward(self, x: Tensor, shares: Tensor) -> Tensor:
        logits: Tensor = self.conv(F.relu(self.norm(x, shares)))
        return logits.to(self.conv.weight.dtype).sigmoid()


def upsample(x: Tensor) -> Tensor:
    """Doubles the sides by repeating every pixel."""
    return F.interpolate(x, scale_factor=2, mode="nearest")
