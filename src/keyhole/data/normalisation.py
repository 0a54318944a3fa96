"""How images are normalised: as the user says, as assumed, or as found from the inputs themselves.

A model's inputs are ``x = (p - mean) / std`` of pixels p in [0, 1]. From exact inputs one can find
mean and std: only the right ones turn the inputs into pixels that fill [0, 1] without leaving it,
and into whole grey levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.data.image_set import ImageSet, denormalise

GREY_LEVELS = 255
WHOLE_LEVELS = 0.05
"""Pixels are grey levels if their mean distance to whole levels is below this; chance is 0.25."""
FEW_LEVELS = 8
"""With fewer different values, grey levels cannot be told from chance."""
TAIL = 0.02
"""The fraction of values ignored at either end, since reconstructions may be noisy."""
OUTSIDE_COST = 4.0
"""How much worse it is to leave [0, 1] by some length than to leave that length of it unfilled."""
SLACK = 0.15
"""Noisy pixels may leave [0, 1] by this much at no cost."""
CLEAR_MARGIN = 0.5
"""Another normalisation must fit better by this much to replace the assumed one."""
NO_FIT = 0.85
"""Above this misfit of the best one, none of the common normalisations fits."""


@dataclass(frozen=True)
class Normalisation:
    """The mean and standard deviation of each channel.

    Args:
        mean: The mean of each channel.
        std: The standard deviation of each channel.
        name: What this normalisation is known as, such as ``ImageNet's``.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = ""

    @classmethod
    def of(cls, data: ImageSet) -> Normalisation:
        """Returns the normalisation of a data set.

        Args:
            data: The data set.
        """
        return cls(data.mean, data.std)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Turns the model's inputs into pixels in [0, 1], not clamped.

        Args:
            inputs: The model's inputs ``[n, C, H, W]``.
        """
        return denormalise(inputs, self.mean, self.std)

    def __str__(self) -> str:
        """Returns it as options of the command line.

        >>> str(Normalisation((0.5, 0.5, 0.5), (0.2, 0.2, 0.3)))
        '--mean 0.5 --std 0.2,0.2,0.3'
        """
        return f"--mean {format_values(self.mean)} --std {format_values(self.std)}"


def format_values(values: Sequence[float]) -> str:
    """Returns ``0.5``, or ``0.49,0.48,0.45`` if channels differ."""
    short = [f"{value:.6g}" for value in values]
    return short[0] if len(set(short)) == 1 else ",".join(short)


COLOUR = (
    Normalisation((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), "ImageNet's"),
    Normalisation((0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616), "CIFAR-10's"),
    Normalisation((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.201), "CIFAR-10's"),
    Normalisation((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761), "CIFAR-100's"),
)
GREY = (
    Normalisation((0.1307,), (0.3081,), "MNIST's"),
    Normalisation((0.286,), (0.353,), "Fashion-MNIST's"),
    Normalisation((0.449,), (0.226,), "ImageNet's, grey"),
)


def common_normalisations(channels: int) -> list[Normalisation]:
    """Returns the common normalisations of images with ``channels`` channels."""
    own = {1: GREY, 3: COLOUR}.get(channels, ())
    return [
        Normalisation((0.5,) * channels, (0.5,) * channels, "[-1, 1]"),
        Normalisation((0.0,) * channels, (1.0,) * channels, "raw [0, 1]"),
        Normalisation((0.0,) * channels, (1 / GREY_LEVELS,) * channels, "raw [0, 255]"),
        *own,
    ]


def fit_normalisation(inputs: Tensor, assumed: Normalisation) -> Normalisation:
    """Returns the normalisation that best turns ``inputs [n, C, H, W]`` into pixels.

    Whole grey levels decide if there are any; otherwise the box [0, 1] decides, if it does so
    clearly. Only the inputs are used. If no common normalisation fits, their range is stretched to
    the box.
    """
    inputs = inputs.detach().double()
    if not len(inputs) or not torch.isfinite(inputs).all():
        return assumed
    choices = [assumed, *common_normalisations(inputs.shape[1])]
    pixels = [choice.pixels(inputs) for choice in choices]
    for choice, seen in zip(choices, pixels, strict=True):
        if are_grey_levels(seen):
            return choice
    costs = [box_misfit(seen) for seen in pixels]
    best = min(range(len(choices)), key=costs.__getitem__)
    if costs[best] > NO_FIT:
        return stretch_to_box(inputs)
    return choices[best] if costs[0] - costs[best] > CLEAR_MARGIN else assumed


def are_grey_levels(pixels: Tensor) -> bool:
    """Returns whether these are pixels beyond doubt: whole grey levels within [0, 1]."""
    return distance_to_grey_levels(pixels) < WHOLE_LEVELS and distance_outside_box(pixels) < SLACK


def distance_to_grey_levels(pixels: Tensor) -> float:
    """Returns the mean distance of values to whole grey levels; 0.5 if there are too few values."""
    levels = (pixels * GREY_LEVELS).flatten()
    distinct = torch.unique((levels * 100).round()) / 100
    if len(distinct) < FEW_LEVELS:
        return 0.5
    return float((distinct - distinct.round()).abs().mean())


def value_range(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the least and the greatest value of each image, without the tails."""
    found = torch.quantile(pixels.flatten(1), torch.tensor([TAIL, 1 - TAIL]).to(pixels), dim=1)
    return found[0], found[1]


def distance_outside_box(pixels: Tensor) -> float:
    """Returns how far images leave the box [0, 1]: the median over images."""
    low, high = value_range(pixels)
    return float(((-low).clamp_min(0) + (high - 1).clamp_min(0)).median())


def box_misfit(pixels: Tensor) -> float:
    """Returns how badly images fit the box [0, 1]: how far they leave it, and fail to fill it."""
    low, high = value_range(pixels)
    leaves = (-low).clamp_min(0) + (high - 1).clamp_min(0)
    lacks = low.clamp(0, 1) + (1 - high).clamp(0, 1)
    return float((OUTSIDE_COST * (leaves - SLACK).clamp_min(0) + lacks).median())


def stretch_to_box(inputs: Tensor) -> Normalisation:
    """Returns the normalisation that maps the range of all inputs onto [0, 1]."""
    low, high = (float(end.median()) for end in value_range(inputs))
    width = max(high - low, 1e-12)
    channels = inputs.shape[1]
    mean, std = -low / width, 1 / width
    return Normalisation((mean,) * channels, (std,) * channels, "their own range")
