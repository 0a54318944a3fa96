"""Changed copies of a batch's images: turned, mirrored or sheared."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import torch
from torch import Tensor

SHEAR = 0.5
"""By how many pixels each row of a sheared image moves against the one above it."""


class Augmentation(StrEnum):
    """One way to change an image; the value says how."""

    TURN_90 = "turned by 90 degrees"
    TURN_180 = "turned by 180 degrees"
    TURN_270 = "turned by 270 degrees"
    MIRROR = "mirrored left to right"
    UPSIDE_DOWN = "mirrored top to bottom"
    SHEAR = "sheared"


TURNS = (Augmentation.TURN_90, Augmentation.TURN_180, Augmentation.TURN_270)


def augment_batch(images: Tensor, augmentations: Sequence[Augmentation]) -> Tensor:
    """The images, followed by one changed copy of all of them per augmentation.

    Args:
        images: ``[B, C, H, W]``; square where they are turned by 90 degrees.
        augmentations: The changes.

    >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    >>> augment_batch(image, [Augmentation.MIRROR])[1, 0]
    tensor([[2., 1.],
            [4., 3.]])
    """
    return torch.cat([images, *(augment(images, each) for each in augmentations)])


def augment(images: Tensor, how: Augmentation) -> Tensor:
    """One changed copy of every image.

    Args:
        images: ``[B, C, H, W]``.
        how: The change.
    """
    if how in TURNS:
        return images.rot90(1 + TURNS.index(how), (-2, -1))
    if how is Augmentation.MIRROR:
        return images.flip(-1)
    if how is Augmentation.UPSIDE_DOWN:
        return images.flip(-2)
    return shear_rows(images)


def shear_rows(images: Tensor) -> Tensor:
    """Moves rows sideways by whole pixels, in proportion to their distance from the middle.

    What moves in from outside is 0, the mean colour of normalised images.
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device)
    shift = (SHEAR * (rows - (height - 1) / 2)).round().long()
    source = torch.arange(width, device=images.device) - shift[:, None]
    inside = (source >= 0) & (source < width)
    moved = images.gather(-1, source.clamp(0, width - 1).expand_as(images))
    return moved * inside.to(images)
