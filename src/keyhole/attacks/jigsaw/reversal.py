"""Finds which of several sequences of changes an image went through, and reverses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from keyhole.defenses.image_steps import MOVING, ImageStep, apply_steps

Way = tuple[ImageStep, ...]


def find_steps(image: Tensor, ways: Sequence[Way]) -> Way:
    """The way whose gap explains most of an image; an empty one if none leaves a gap that does.

    A way says where it leaves a gap and which tone that has. Its merit is by how much this tone is
    nearer to the gap's pixels than the mean of all other pixels is, in squared distance.

    Args:
        image: ``[C, H, W]`` in [0, 1], as it was read.
        ways: The sequences of changes that are possible.
    """
    best: Way = ()
    most = 0.0
    for way in ways:
        gap = find_gap(image, way)
        if gap.all() or not gap.any():
            continue
        again = apply_steps(reverse_steps(image, way), way)
        mean = image[:, ~gap].mean(1, keepdim=True)
        seen = image[:, gap]
        merit = float((seen - mean).square().sum() - (seen - again[:, gap]).square().sum())
        if merit > most:
            best, most = way, merit
    return best


def find_gap(image: Tensor, way: Way) -> Tensor:
    """Where a way leaves a gap in images like this one, bool ``[H, W]``."""
    white = torch.ones_like(image[:1])
    return apply_steps(white, [step for step in way if step.kind in MOVING])[0] != 1


def reverse_steps(image: Tensor, way: Way, *, colours: bool = True) -> Tensor:
    """An image before it went through a way. What it lost cannot be brought back.

    Lines that a move pushed out of the image are lost: those at its edge are repeated. Changes of
    sharpness and solarising are not reversed.

    Args:
        image: ``[C, H, W]`` in [0, 1].
        way: The changes, in the order in which they were made.
        colours: Whether changes of contrast and brightness are reversed, too.
    """
    for step in reversed(way):
        reverse = REVERSALS.get(step.kind)
        if reverse is not None and (colours or step.kind in MOVING):
            image = reverse(image, step.size)
    return image


def shift_lines(image: Tensor, share: float, axis: int) -> Tensor:
    """An image whose lines are taken from further on; those beyond the edge repeat the last."""
    size = image.shape[axis]
    source = torch.arange(size, device=image.device) + round(share * size)
    return image.index_select(axis, source.clamp(0, size - 1))


def spread_tones(image: Tensor, factor: float) -> Tensor:
    """An image before its tones' distances from its mean grey were multiplied by a factor."""
    weights = [0.299, 0.587, 0.114] if len(image) == 3 else [1.0]  # as contrast's mean is defined
    grey = (image[: len(weights)].mean((1, 2)) * torch.tensor(weights).to(image)).sum()
    return ((image - (1 - factor) * grey) / factor).clamp(0, 1)


REVERSALS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "move-x": lambda image, size: shift_lines(image, size, -1),
    "move-y": lambda image, size: shift_lines(image, size, -2),
    "rotate": lambda image, size: ImageStep("rotate", -size).apply(image),
    "contrast": lambda image, size: spread_tones(image, 1 + size),
    "brightness": lambda image, size: (image / (1 + size)).clamp(0, 1),
}
