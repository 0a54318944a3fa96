"""What a corruption is, and how strong it is at each image size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from keyhole.errors import BadValue, DoesNotFit

Family = Literal["noise", "blur", "weather", "digital"]
Distort = Callable[[Tensor, float, torch.Generator], Tensor]
"""Images ``[n, C, H, W]`` in [0, 1] and a strength in; images out, not yet clamped."""

SEVERITIES = (1, 2, 3, 4, 5)
SMALL, LARGE = 32, 224


@dataclass(frozen=True)
class Strengths:
    """Five strengths for 32 px images and five for 224 px; sizes between lie between them.

    ``a^(1-t) b^t`` with ``t = log(side / 32) / log(7)``, clamped to [0, 1].

    Args:
        at_32: For severities 1 to 5.
        at_224: Likewise.
        in_pixels: The strength is a length in pixels, and goes on growing with larger images.

    >>> Strengths((1, 2, 3, 4, 5), (7, 14, 21, 28, 35), in_pixels=True).at(2, 448)
    28.0
    """

    at_32: tuple[float, float, float, float, float]
    at_224: tuple[float, float, float, float, float]
    in_pixels: bool = False

    def at(self, severity: int, side: int) -> float:
        if severity not in SEVERITIES:
            raise BadValue(f"severity runs from 1 to 5, got {severity}")
        small, large = self.at_32[severity - 1], self.at_224[severity - 1]
        t = min(max(math.log(side / SMALL) / math.log(LARGE / SMALL), 0.0), 1.0)
        beyond = max(side / LARGE, 1.0) if self.in_pixels else 1.0
        return float(small ** (1 - t) * large**t * beyond)


@dataclass(frozen=True)
class Corruption:
    """A way to spoil an image, in five severities.

    Args:
        name: Identifies it.
        family: What kind it is.
        summary: What it looks like.
        distort: Does it, with a given strength.
        strengths: By severity and image size.
        needs_colour: It cannot be done to grey images.
    """

    name: str
    family: Family
    summary: str
    distort: Distort
    strengths: Strengths
    needs_colour: bool = False

    def __call__(self, images: Tensor, severity: int, generator: torch.Generator) -> Tensor:
        """Corrupted images in [0, 1], of the type and on the device of ``images``.

        Args:
            images: ``[n, C, H, W]`` in [0, 1].
            severity: 1 to 5.
            generator: Draws what is random; images are corrupted on its device, in float32.
        """
        self._check(images)
        strength = self.strengths.at(severity, min(images.shape[-2:]))
        at_home = images.detach().to(generator.device, torch.float32)
        return self.distort(at_home, strength, generator).clamp(0, 1).to(images)

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] not in (1, 3) or not images.is_floating_point():
            raise DoesNotFit(
                f"{self.name} takes float images [n, C, H, W] of 1 or 3 channels, "
                f"got {tuple(images.shape)} of {images.dtype}"
            )
        if self.needs_colour and images.shape[1] != 3:
            raise DoesNotFit(f"{self.name} changes colours, and these images are grey")
        if images.numel() and not (images.min() >= 0 and images.max() <= 1):
            raise DoesNotFit(f"{self.name} takes images in [0, 1]: denormalise or clamp them first")
