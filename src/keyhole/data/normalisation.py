"""How images become a model's inputs: given in words, assumed, or told by the inputs themselves.

A model is fed ``x = (p - mean) / std`` of pixels p in [0, 1]. Who has exact inputs but not mean and
std can tell them: only the right ones turn the inputs into pixels that fill [0, 1] and do not leave
it, and into whole grey levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import BeforeValidator
from torch import Tensor

from keyhole.data.image_set import ImageSet, denormalise
from keyhole.errors import BadValue
from keyhole.registry import shortened

MOST_CHANNELS = 64
EXTREME = 1e6
"""No mean or standard deviation is beyond this, nor the latter below its inverse."""
GREY_LEVELS = 255
WHOLE = 0.05
"""Pixels are whole grey levels if they differ from them by less, on average; chance is 0.25."""
FEW_LEVELS = 8
"""Fewer different values than this do not tell grey levels from chance."""
TAIL = 0.02
"""The share of values at either end that does not count, since reconstructions may be noisy."""
OUTSIDE = 4.0
"""Leaving the box by some length is as bad as filling so many times that length less of it."""
SLACK = 0.15
"""Noisy pixels may leave the box by this much at no cost."""
CLEARLY = 0.5
"""Another normalisation must fit the box better by this much to take the place of the assumed."""
ASTRAY = 0.85
"""Where even the best misfits by more than this, none of the common ones fits."""


def read_means(value: object) -> tuple[float, ...]:
    """Reads ``0.5``, ``"0.49,0.48,0.45"`` or a list of numbers.

    >>> read_means("0.49, 0.48, 0.45")
    (0.49, 0.48, 0.45)
    """
    found = _numbers(value)
    if not found or any(not abs(v) <= EXTREME for v in found):
        raise _unreadable("mean", value)
    return found


def read_deviations(value: object) -> tuple[float, ...]:
    """Reads standard deviations, which must be above 0, as :func:`read_means` does."""
    found = _numbers(value)
    if not found or any(not 1 / EXTREME <= v <= EXTREME for v in found):
        raise _unreadable("std", value)
    return found


def _numbers(value: object) -> tuple[float, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    listed = list(parts) if isinstance(parts, list | tuple) else [parts]
    if len(listed) > MOST_CHANNELS or any(not isinstance(p, str | int | float) for p in listed):
        return ()
    try:
        return tuple(float("nan") if isinstance(p, bool) else float(str(p)) for p in listed)
    except (ValueError, OverflowError):
        return ()


def _unreadable(name: str, value: object) -> BadValue:
    above = " above 0" if name == "std" else ""
    return BadValue(
        f"{name}: give one number{above}, or one per channel as in 0.49,0.48,0.45; got "
        f"{shortened(value)}"
    )


def check_both(mean: object, std: object) -> None:
    """Raises where one of the two is given without the other."""
    if (mean is None) != (std is None):
        given, lacking = ("mean", "std") if std is None else ("std", "mean")
        raise BadValue(f"{given} is given without {lacking}: give both")


def as_facts(mean: object, std: object) -> dict[str, str]:
    """Both as text that reads back to the same numbers; nothing where neither is given.

    >>> as_facts(0.5, (0.2, 0.25, 0.3))
    {'mean': '0.5', 'std': '0.2,0.25,0.3'}
    """
    check_both(mean, std)
    if mean is None:
        return {}
    both = {"mean": read_means(mean), "std": read_deviations(std)}
    return {name: ",".join(repr(v) for v in values) for name, values in both.items()}


Means = Annotated[tuple[float, ...], BeforeValidator(read_means)]
Deviations = Annotated[tuple[float, ...], BeforeValidator(read_deviations)]


@dataclass(frozen=True)
class Normalisation:
    """Mean and standard deviation of each channel, and what they are known as."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    name: str = ""

    @classmethod
    def of(cls, data: ImageSet) -> Normalisation:
        return cls(data.mean, data.std)

    def pixels(self, inputs: Tensor) -> Tensor:
        """Inputs as pixels, not clamped."""
        return denormalise(inputs, self.mean, self.std)

    def __str__(self) -> str:
        """As the command line takes it.

        >>> str(Normalisation((0.5, 0.5, 0.5), (0.2, 0.2, 0.3)))
        '--mean 0.5 --std 0.2,0.2,0.3'
        """
        return f"--mean {as_text(self.mean)} --std {as_text(self.std)}"


def as_text(values: Sequence[float]) -> str:
    """``0.5``, or ``0.49,0.48,0.45`` where channels differ."""
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


def common(channels: int) -> list[Normalisation]:
    """What people use, for images of so many channels."""
    own = {1: GREY, 3: COLOUR}.get(channels, ())
    return [
        Normalisation((0.5,) * channels, (0.5,) * channels, "[-1, 1]"),
        Normalisation((0.0,) * channels, (1.0,) * channels, "raw [0, 1]"),
        Normalisation((0.0,) * channels, (1 / GREY_LEVELS,) * channels, "raw [0, 255]"),
        *own,
    ]


def best_fit(inputs: Tensor, assumed: Normalisation) -> Normalisation:
    """The normalisation that turns ``inputs [n, C, H, W]`` into pixels best.

    Whole grey levels decide where there are any; else the box [0, 1] does, if clearly. Nothing but
    the inputs is looked at. Where no common normalisation fits, each channel is stretched to the
    box.
    """
    inputs = inputs.detach().double()
    if not len(inputs) or not torch.isfinite(inputs).all():
        return assumed
    choices = [assumed, *common(inputs.shape[1])]
    pixels = [choice.pixels(inputs) for choice in choices]
    for choice, seen in zip(choices, pixels, strict=True):
        if are_grey_levels(seen):
            return choice
    costs = [misfit(seen) for seen in pixels]
    best = min(range(len(choices)), key=costs.__getitem__)
    if costs[best] > ASTRAY:
        return stretched(inputs)
    return choices[best] if costs[0] - costs[best] > CLEARLY else assumed


def are_grey_levels(pixels: Tensor) -> bool:
    """Whether these can only be pixels: whole grey levels within the box."""
    return off_levels(pixels) < WHOLE and outside(pixels) < SLACK


def off_levels(pixels: Tensor) -> float:
    """How far values are from whole grey levels, on average; 0.5 where there are too few."""
    levels = (pixels * GREY_LEVELS).flatten()
    kinds = torch.unique((levels * 100).round()) / 100
    if len(kinds) < FEW_LEVELS:
        return 0.5
    return float((kinds - kinds.round()).abs().mean())


def ends(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the greatest value of each image, but for the tails."""
    found = torch.quantile(pixels.flatten(1), torch.tensor([TAIL, 1 - TAIL]).to(pixels), dim=1)
    return found[0], found[1]


def outside(pixels: Tensor) -> float:
    """How far images leave the box [0, 1], the median over images."""
    low, high = ends(pixels)
    return float(((-low).clamp_min(0) + (high - 1).clamp_min(0)).median())


def misfit(pixels: Tensor) -> float:
    """How badly images fit the box, by what they leave it by and what of it they do not fill."""
    low, high = ends(pixels)
    leaves = (-low).clamp_min(0) + (high - 1).clamp_min(0)
    lacks = low.clamp(0, 1) + (1 - high).clamp(0, 1)
    return float((OUTSIDE * (leaves - SLACK).clamp_min(0) + lacks).median())


def stretched(inputs: Tensor) -> Normalisation:
    """What maps the range of all inputs onto [0, 1]: what is left where nothing common fits."""
    low, high = (float(end.median()) for end in ends(inputs))
    width = max(high - low, 1e-12)
    channels = inputs.shape[1]
    mean, std = -low / width, 1 / width
    return Normalisation((mean,) * channels, (std,) * channels, "their own range")
