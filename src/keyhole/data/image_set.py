"""A set of labelled images from any source."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf

from keyhole.errors import BadValue
from keyhole.spelling import shorten

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

Pixels = Callable[[Sequence[int]], Tensor]
"""Reads some images by index: uint8 ``[n, C, H, W]``."""

Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class ImageSet:
    """Labelled images in [0, 1], read by index on request.

    Args:
        name: The data set's name.
        pixels: Reads images by index: uint8 ``[n, C, H, W]``.
        labels: The class of each image ``[N]``.
        classes: The names of the classes.
        size: Height and width of the images.
        mean: The mean by which the model's inputs are normalised, one per channel.
        std: The standard deviation, one per channel.
        curated: Whether the best examples come first, so that victims are taken from the front;
            otherwise they are drawn by seed.
        groups: Images of the same group show parts of the same thing; if one of them is a victim,
            none of the others may be a public image.
        users: The user of each image, where that is known.
        versions: One reader per version, where images have several; epochs use them in turn.
    """

    name: str
    pixels: Pixels
    labels: Tensor
    classes: tuple[str, ...]
    size: Size
    mean: tuple[float, ...]
    std: tuple[float, ...]
    curated: bool = False
    groups: Tensor | None = None
    users: Tensor | None = None
    versions: tuple[Pixels, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", allow_empty_reads(self.pixels, self.shape))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        return (len(self.mean), *self.size)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """Returns the images at ``indices``, float32 ``[n, C, H, W]`` in [0, 1].

        Args:
            indices: Which images.
            epoch: The epoch of training, where images have several versions; they are used in turn.
        """
        if not len(indices):
            return torch.empty(0, *self.shape)
        read = self.versions[epoch % len(self.versions)] if self.versions else self.pixels
        return read(indices).to(torch.float32) / 255

    def with_normalisation(
        self, mean: float | Sequence[float], std: float | Sequence[float]
    ) -> ImageSet:
        """Returns the same images with another normalisation.

        Args:
            mean: One number, or one per channel.
            std: One number, or one per channel.

        >>> from keyhole.data import load
        >>> load("digits").with_normalisation(0.5, 0.5).mean
        (0.5,)
        """
        means, deviations = (self._for_channels(n, v) for n, v in (("mean", mean), ("std", std)))
        if not all(math.isfinite(v) for v in means) or not all(
            0 < v < math.inf for v in deviations
        ):
            raise BadValue(
                f"mean {means} and std {deviations} are invalid: they must be finite, and std "
                "above 0"
            )
        return replace(self, mean=means, std=deviations)

    def _for_channels(self, name: str, values: float | Sequence[float]) -> tuple[float, ...]:
        listed = [values] if isinstance(values, int | float) else list(values)
        channels = len(self.mean)
        if len(listed) not in (1, channels):
            raise BadValue(
                f"{name}: {len(listed)} numbers for images of {channels} channel(s): give one, or "
                "one per channel"
            )
        return tuple(float(v) for v in (listed * channels if len(listed) == 1 else listed))

    def normalise(self, images: Tensor) -> Tensor:
        """Turns images in [0, 1] into the model's inputs: ``(x - mean) / std`` per channel.

        Args:
            images: ``[n, C, H, W]`` in [0, 1].
        """
        return normalise(images, self.mean, self.std)


def allow_empty_reads(read: Pixels, shape: tuple[int, int, int]) -> Pixels:
    """Returns a reader that returns ``[0, C, H, W]`` for no indices."""

    def some_or_none(indices: Sequence[int]) -> Tensor:
        return read(indices) if len(indices) else torch.empty(0, *shape, dtype=torch.uint8)

    return some_or_none


def per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    """Returns ``values`` shaped to broadcast over ``[n, C, H, W]``, with ``like``'s type."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Turns images in [0, 1] into the model's inputs.

    Args:
        images: ``[n, C, H, W]`` in [0, 1].
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """
    return (images - per_channel(mean, images)) / per_channel(std, images)


def denormalise(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Turns the model's inputs into images in [0, 1], not clamped.

    Args:
        inputs: The model's inputs ``[n, C, H, W]``.
        mean: The mean of each channel.
        std: The standard deviation of each channel.
    """
    return inputs * per_channel(std, inputs) + per_channel(mean, inputs)


MAX_SIDE = 1 << 16
"""The largest side of an image, in pixels."""


def parse_size(text: str | int | Sequence[int] | None) -> Size | None:
    """Parses ``224`` or ``112x92`` (height x width).

    Args:
        text: The size as text, as one number, or as height and width; None stays None.

    >>> parse_size("112x92")
    (112, 92)
    """
    if text is None:
        return None
    try:
        if isinstance(text, str):
            parts = [int(part) for part in text.lower().split("x")]
        else:
            parts = [text] if isinstance(text, int) else list(text)
        height, width = parts if len(parts) == 2 else (parts[0], parts[0])
        if len(parts) > 2 or not 1 <= min(height, width) <= max(height, width) <= MAX_SIDE:
            raise ValueError
    except (ValueError, TypeError):
        raise BadValue(f"cannot read image size {shorten(text)}: write 224, or 112x92") from None
    return height, width


def resize(images: Tensor, size: Size) -> Tensor:
    """Scales uint8 ``[n, C, H, W]`` by the short side, antialiased, and crops the centre."""
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    scale = max(size[0] / height, size[1] / width)
    grown = [max(size[0], round(height * scale)), max(size[1], round(width * scale))]
    return tvf.center_crop(tvf.resize(images, grown, antialias=True), list(size))  # type: ignore[no-any-return]


def array_reader(array: Array, size: Size | None) -> Pixels:
    """Returns a reader over uint8 images in memory, ``[N, H, W]`` or ``[N, H, W, C]``."""
    grey = array.ndim == 3

    def read(indices: Sequence[int]) -> Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(array[list(indices)]))
        images = chosen[:, None] if grey else chosen.permute(0, 3, 1, 2)
        return resize(images, size or (array.shape[1], array.shape[2]))

    return read
