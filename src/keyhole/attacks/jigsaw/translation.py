"""Finds the gap that a moved image leaves at its border, and moves the image back."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.defenses.capabilities import Translation

FLAT = 0.06
"""The mean distance from its median up to which a row of pixels counts as one grey."""
NEAR = 0.25
"""How far that grey may be from the declared one: changes of contrast move it."""


def move_back(image: Tensor, change: Translation) -> Tensor:
    """An image ``[C, H, W]`` in [0, 1] without the gaps at its borders.

    Lines that the move pushed out of the image are lost: those at its edge are repeated.

    Args:
        image: The image as it was read.
        change: How far it can have been moved, and what fills the gap.
    """
    for axis in (-2, -1):
        shift = find_shift(image, change, axis)
        if shift:
            size = image.shape[axis]
            source = (torch.arange(size, device=image.device) + shift).clamp(0, size - 1)
            image = image.index_select(axis, source)
    return image


def find_shift(image: Tensor, change: Translation, axis: int) -> int:
    """By how many pixels an image was moved down or to the right; less than 0: up or to the left.

    Args:
        image: ``[C, H, W]`` in [0, 1].
        change: How far it can have been moved, and what fills the gap.
        axis: -2 for moves up and down, -1 for moves to the sides.
    """
    lines = image.movedim(axis, 0).flatten(1)
    most = round(change.largest * len(lines))
    grey = lines.median(1).values
    distance = (lines - grey[:, None]).abs().mean(1)
    gap = ((distance < FLAT) & ((grey - change.fill).abs() < NEAR)).tolist()
    before, after = count_leading(gap), count_leading(gap[::-1])
    if max(before, after) > most or before == after:
        return 0
    return before if before > after else -after


def count_leading(flags: list[bool]) -> int:
    """How many flags are set before the first that is not.

    >>> count_leading([True, True, False, True])
    2
    """
    return next((i for i, flag in enumerate(flags) if not flag), len(flags))
