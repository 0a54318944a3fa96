"""Changes of single images that a policy of augmentations is made of, as PIL makes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tvf

BLACK = 0.0
"""What a move leaves at the border that the image moved away from."""
GREY = 128 / 255
"""What a rotation leaves in the corners."""
MOVING = ("move-x", "move-y", "rotate")
"""The kinds of steps after which pixels are in other places."""


@dataclass(frozen=True)
class ImageStep:
    """One change of an image.

    Args:
        kind: One of :data:`CHANGES`.
        size: How strong it is: a share of the image's side, degrees, by how much a factor differs
            from 1, or the level from which on pixels are inverted. Less than 0: the other way.
    """

    kind: str
    size: float

    def apply(self, image: Tensor) -> Tensor:
        """An image after this change.

        Args:
            image: ``[C, H, W]`` in [0, 1].
        """
        return CHANGES[self.kind](image, self.size)


def apply_steps(image: Tensor, steps: Sequence[ImageStep]) -> Tensor:
    """An image ``[C, H, W]`` in [0, 1] after several changes, one after the other."""
    for step in steps:
        image = step.apply(image)
    return image


def move(image: Tensor, down: float, across: float) -> Tensor:
    """An image ``[C, H, W]`` moved by whole pixels; the gap becomes black.

    Args:
        image: The image.
        down: How far down, as a share of its height.
        across: How far to the right, as a share of its width.
    """
    height, width = image.shape[-2:]
    rows, columns = round(down * height), round(across * width)
    moved = torch.full_like(image, BLACK)
    target = moved[:, max(rows, 0) : height + min(rows, 0), max(columns, 0) :][
        :, :, : width - abs(columns)
    ]
    source = image[:, max(-rows, 0) : height - max(rows, 0), max(-columns, 0) :]
    target.copy_(source[:, :, : width - abs(columns)])
    return moved


CHANGES: dict[str, Callable[[Tensor, float], Tensor]] = {
    "move-x": lambda image, size: move(image, 0, size),
    "move-y": lambda image, size: move(image, size, 0),
    "rotate": lambda image, size: tvf.rotate(image, size, fill=[GREY] * len(image)),
    "contrast": lambda image, size: tvf.adjust_contrast(image, 1 + size),
    "brightness": lambda image, size: tvf.adjust_brightness(image, 1 + size),
    "sharpness": lambda image, size: tvf.adjust_sharpness(image, 1 + size),
    "solarise": tvf.solarize,
}
