"""Which values of an update are largest, and what the others can have been."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from keyhole.defenses.capabilities import Interval
from keyhole.update import Update

Scope = Literal["tensor", "update"]
"""Whether values are ranked within their tensor, or over the whole update."""


def keep_largest(update: Update, dropped: float, scope: Scope) -> tuple[Update, int, int]:
    """The update with its smallest values set to zero, the count of those kept, and of all.

    Ties are broken so that the count is exact.

    Args:
        update: The update; integer tensors are left alone.
        dropped: The share of values that become zero, rounded down to a whole number of them.
        scope: Where values are ranked.
    """
    floats = {k: v for k, v in update.change.items() if v.is_floating_point()}
    if scope == "tensor" or not floats:
        survives = {k: mark_largest(v.flatten(), dropped).view_as(v) for k, v in floats.items()}
    else:
        everything = torch.cat([v.flatten() for v in floats.values()])
        sizes = [v.numel() for v in floats.values()]
        parts = torch.split(mark_largest(everything, dropped), sizes)
        survives = {k: p.view_as(v) for (k, v), p in zip(floats.items(), parts, strict=True)}
    kept = sum(int(mask.sum()) for mask in survives.values())
    total = sum(v.numel() for v in floats.values())
    return update.map(lambda n, v: torch.where(survives[n], v, torch.zeros_like(v))), kept, total


def mark_largest(values: Tensor, dropped: float) -> Tensor:
    """A mask of the values that survive."""
    kept = values.numel() - int(dropped * values.numel())
    mask = torch.zeros_like(values, dtype=torch.bool)
    mask[values.abs().topk(kept).indices] = True
    return mask


def bound_zeros(gradient: Mapping[str, Tensor], scope: Scope) -> dict[str, Interval]:
    """The bounds of a gradient whose smallest values became zero.

    A zero was no larger than the smallest value that survived: in its tensor, or in the whole
    gradient. A tensor of which none survived was zero where values are ranked within it.

    Args:
        gradient: What the server got, by parameter name.
        scope: Where values were ranked.
    """
    survivors = {name: g[g != 0].abs() for name, g in gradient.items()}
    least = {name: float(s.min()) for name, s in survivors.items() if len(s)}
    if not least:
        return {}
    anywhere = min(least.values())
    intervals = {}
    for name, g in gradient.items():
        bound = least.get(name, 0.0) if scope == "tensor" else anywhere
        limit = torch.where(g == 0, torch.full_like(g, bound), torch.zeros_like(g))
        intervals[name] = Interval(g - limit, g + limit)
    return intervals
