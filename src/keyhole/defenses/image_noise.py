"""Gaussian noise on the images: what CSVAR's paper calls FL+DP."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import PixelNoise


@dataclass(frozen=True, kw_only=True)
class ImageNoise(Defense):
    """Adds N(0, sigma^2) to every pixel, drawn again for every epoch.

    Pixels are clipped and rounded to grey levels again. No privacy budget is claimed.

    Args:
        sigma: The noise's standard deviation, in grey levels of 0 to 255.

    >>> images = torch.full((1, 1, 100, 100), 0.5)
    >>> noisy = ImageNoise(sigma=10).on_images(images)
    >>> round(255 * float(noisy.std()))
    10
    """

    sigma: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 50.0

    name: ClassVar[str] = "image-noise"
    summary: ClassVar[str] = "adds Gaussian noise to the images, anew for every epoch"
    paper: ClassVar[str] = "the DP baseline of Chen et al. 2025 (CSVAR)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("intercept",)
    images_travel: ClassVar[bool] = True

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        if self.sigma == 0:
            return images
        side = side or ClientSide()
        draw = torch.Generator(images.device)
        draw.manual_seed(int(torch.randint(2**62, (), generator=side.generator)))
        noise = torch.randn(images.shape, generator=draw, device=images.device, dtype=images.dtype)
        return ((images * 255 + noise * self.sigma).round().clamp(0, 255)) / 255

    def image_change(self) -> PixelNoise:
        return PixelNoise(self.sigma / 255)
