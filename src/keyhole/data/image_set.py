"""A set of labelled images, whatever it was read from."""

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
from keyhole.registry import shortened

Array = np.ndarray[tuple[int, ...], np.dtype[Any]]

Pixels = Callable[[Sequence[int]], Tensor]
"""Reads some images by index: uint8 ``[n, C, H, W]``."""

Size = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class ImageSet:
    """Images in [0, 1] by index, read when they are asked for.

    ``curated`` sets list their best examples first, so victims are taken from the front; from all
    others they are drawn by seed. ``groups`` says which images show parts of the same thing: none
    of a victim's group may serve as a public image.
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
    """Whose image is whose, where that is known."""
    versions: tuple[Pixels, ...] = ()
    """Readers of the images' versions, one for each epoch, where they have several."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "pixels", reads_nothing_too(self.pixels, self.shape))

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height, width of one image."""
        return (len(self.mean), *self.size)

    def images(self, indices: Sequence[int], epoch: int = 0) -> Tensor:
        """The images at ``indices``, float32 ``[n, C, H, W]`` in [0, 1].

        Where they have versions, the one for ``epoch``; they are used in turns.
        """
        if not len(indices):
            return torch.empty(0, *self.shape)
        read = self.versions[epoch % len(self.versions)] if self.versions else self.pixels
        return read(indices).to(torch.float32) / 255

    def normalised_by(
        self, mean: float | Sequence[float], std: float | Sequence[float]
    ) -> ImageSet:
        """The same images, fed to models by another mean and std: one number, or one per channel.

        >>> from keyhole.data import load
        >>> load("digits").normalised_by(0.5, 0.5).mean
        (0.5,)
        """
        means, deviations = (self._for_channels(n, v) for n, v in (("mean", mean), ("std", std)))
        if not all(math.isfinite(v) for v in means) or not all(
            0 < v < math.inf for v in deviations
        ):
            raise BadValue(
                f"mean {means} and std {deviations} normalise nothing: they must be finite, and "
                "std above 0"
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
        """From [0, 1] to what the model is fed: ``(x - mean) / std`` per channel."""
        return normalise(images, self.mean, self.std)


def reads_nothing_too(read: Pixels, shape: tuple[int, int, int]) -> Pixels:
    """A reader that gives ``[0, C, H, W]`` where it is asked for no image."""

    def some_or_none(indices: Sequence[int]) -> Tensor:
        return read(indices) if len(indices) else torch.empty(0, *shape, dtype=torch.uint8)

    return some_or_none


def per_channel(values: Sequence[float], like: Tensor) -> Tensor:
    """``values`` shaped to broadcast over ``[n, C, H, W]`` in ``like``'s type and place."""
    return torch.tensor(values, dtype=like.dtype, device=like.device).view(-1, 1, 1)


def normalise(images: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """From [0, 1] to what the model is fed."""
    return (images - per_channel(mean, images)) / per_channel(std, images)


def denormalise(inputs: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """From what the model is fed back to [0, 1] (not clamped)."""
    return inputs * per_channel(std, inputs) + per_channel(mean, inputs)


LARGEST = 1 << 16
"""Pixels of an image's side."""


def parse_size(text: str | int | Sequence[int] | None) -> Size | None:
    """Reads ``224`` or ``112x92`` (height x width).

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
        if len(parts) > 2 or not 1 <= min(height, width) <= max(height, width) <= LARGEST:
            raise ValueError
    except (ValueError, TypeError):
        raise BadValue(f"cannot read image size {shortened(text)}: write 224, or 112x92") from None
    return height, width


def resized(images: Tensor, size: Size) -> Tensor:
    """uint8 ``[n, C, H, W]`` at another size: short side first, then the centre (antialiased)."""
    height, width = images.shape[-2:]
    if (height, width) == size:
        return images
    scale = max(size[0] / height, size[1] / width)
    grown = [max(size[0], round(height * scale)), max(size[1], round(width * scale))]
    return tvf.center_crop(tvf.resize(images, grown, antialias=True), list(size))  # type: ignore[no-any-return]


def from_array(array: Array, size: Size | None) -> Pixels:
    """A reader over uint8 images in memory, ``[N, H, W]`` or ``[N, H, W, C]``."""
    grey = array.ndim == 3

    def read(indices: Sequence[int]) -> Tensor:
        chosen = torch.from_numpy(np.ascontiguousarray(array[list(indices)]))
        images = chosen[:, None] if grey else chosen.permute(0, 3, 1, 2)
        return resized(images, size or (array.shape[1], array.shape[2]))

    return read
