"""Bounds on target gradients, where a defense does not show their values: one axis per victim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from keyhole.attacks.matching.gradients.gradient_weights import GradientWeights, WeightsByName
from keyhole.defenses.capabilities import Interval

IntervalsByName = Mapping[str, Interval]
"""Keyed by parameter name; the values of a parameter that is not listed are known."""
NEARLY_KNOWN = 0.02
"""The width of an interval, as a share of the value shown, up to which that value counts as known:
the rounding of half precision, for one."""


def stack_intervals(
    intervals: Sequence[IntervalsByName],
    gradients: Sequence[Mapping[str, Tensor]],
    gradient_weights: Sequence[WeightsByName],
    scales: Sequence[float],
    like: Tensor,
) -> dict[str, Interval]:
    """The bounds of several victims with the victim axis first, weighted and scaled as targets are.

    A parameter whose bounds are equal everywhere is left out, because its values are known. So is
    one whose weights mix values (:attr:`GradientWeights.bins`), for bounds do not survive that.

    Args:
        intervals: The bounds of each victim's gradient.
        gradients: The victims' targets, weighted but not scaled.
        gradient_weights: The weights of each victim, or nothing.
        scales: What each victim's target is multiplied by.
        like: A tensor of the type and on the device that bounds shall have.
    """
    stacked = {}
    for name in [n for n in gradients[0] if any(n in bounds for bounds in intervals)]:
        weights = [each.get(name) for each in gradient_weights] or [None] * len(intervals)
        if any(each is not None and each.bins is not None for each in weights):
            continue
        pairs = [
            scale_interval(own.get(name), gradient[name], weight, scale)
            for own, gradient, weight, scale in zip(
                intervals, gradients, weights, scales, strict=True
            )
        ]
        low, high = (torch.stack([pair[i].to(like) for pair in pairs]) for i in (0, 1))
        if not torch.equal(low, high):
            stacked[name] = Interval(low, high)
    return stacked


def scale_interval(
    bounds: Interval | None, target: Tensor, weights: GradientWeights | None, scale: float
) -> tuple[Tensor, Tensor]:
    """One victim's bounds, weighted and scaled; if there are none, its weighted target."""
    if bounds is None:
        return target * scale, target * scale
    moved = bounds.map(lambda bound: bound.to(target))
    if weights is not None:
        moved = weigh_interval(moved, weights.keep)
    return moved.low * scale, moved.high * scale


def weigh_interval(bounds: Interval, keep: Tensor) -> Interval:
    """The bounds of rows that are multiplied by ``keep [K]``; a bound at infinity stays there."""
    factors = keep.to(bounds.low).view(-1, *[1] * (bounds.low.dim() - 1))
    return bounds.map(lambda bound: torch.where(bound.isinf(), bound, bound * factors))


def find_known(bounds: Interval, target: Tensor) -> Tensor:
    """Which values are known well enough to be compared themselves, bool."""
    return bounds.high - bounds.low <= NEARLY_KNOWN * target.abs()


def shows_values(tensors: Mapping[str, Tensor], intervals: IntervalsByName) -> bool:
    """Whether each victim's targets have known values other than 0.

    Args:
        tensors: The targets, ``[N, *shape]``.
        intervals: Their bounds.
    """
    energies = [
        (t if n not in intervals else t * find_known(intervals[n], t)).flatten(1).abs().sum(1)
        for n, t in tensors.items()
    ]
    return bool((torch.stack(energies).sum(0) > 0).all())


def share_known(tensors: Mapping[str, Tensor], intervals: IntervalsByName) -> Tensor:
    """The share of each victim's values that are known, ``[N]``.

    Args:
        tensors: The targets, ``[N, *shape]``.
        intervals: Their bounds.
    """
    counts = [
        find_known(intervals[n], t).reshape(len(t), -1).sum(1)
        if n in intervals
        else torch.full((len(t),), t[0].numel(), device=t.device)
        for n, t in tensors.items()
    ]
    return torch.stack(counts).sum(0) / sum(t[0].numel() for t in tensors.values())
