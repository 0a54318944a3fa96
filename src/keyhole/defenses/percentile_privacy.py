"""The largest changes, truncated: the filter of NVIDIA FLARE."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.traces import BoundTrace, Trace, ZerosTrace
from keyhole.update import Update

ROUNDING = 1e-5
"""By how much rounding may move a value, as a share of it."""


@dataclass(frozen=True, kw_only=True)
class PercentilePrivacy(Defense):
    """Zeroes small changes and truncates large ones, as NVIDIA FLARE's ``PercentilePrivacy`` does.

    With ``v = change / steps``, values of ``|v|`` below the percentile of the whole update become
    0, and the others are clipped to ``[-gamma, gamma]``. Scalars are left alone. It adds no noise
    and claims no budget.

    Args:
        percentile: The percentage of values that become 0.
        gamma: The largest magnitude of a step's change; None: values are not clipped.

    >>> update = Update({"w": torch.tensor([0.001, -0.002, 0.005, 0.3])})
    >>> PercentilePrivacy(percentile=50).on_update(update).change["w"]
    tensor([0.0000, 0.0000, 0.0050, 0.0100])
    """

    percentile: Annotated[float, Field(ge=0, le=100)] = 10.0
    gamma: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 0.01

    name: ClassVar[str] = "percentile-privacy"
    summary: ClassVar[str] = "zeroes small changes and truncates large ones (NVIDIA FLARE)"
    paper: ClassVar[str] = "Shokri and Shmatikov 2015, as in NVIDIA FLARE's PercentilePrivacy"
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        cutoff = find_percentile(update, self.percentile)
        limit = math.inf if self.gamma is None else self.gamma * update.steps
        zeros = clipped = 0

        def truncate(_: str, tensor: Tensor) -> Tensor:
            nonlocal zeros, clipped
            if tensor.dim() == 0:
                return tensor
            small, large = tensor.abs() < cutoff, tensor.abs() > limit
            zeros += int(small.sum())
            clipped += int((large & ~small).sum())
            kept = torch.where(small, torch.zeros_like(tensor), tensor)
            return torch.where(large & ~small, limit * tensor.sign(), kept)

        truncated = update.map(truncate)
        side.record(cutoff=cutoff, zeros=zeros, clipped=clipped)
        return truncated

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """A zero was below the smallest value that survived; a truncated value was beyond gamma.

        Where every survivor was truncated, zeros can have been of any size.
        """
        gradient = update.gradient()
        limit = math.inf if self.gamma is None else self.gamma / update.lr
        limit *= 1 - ROUNDING
        sizes = [g[g != 0].abs() for g in gradient.values() if g.dim()]
        survivors = [float(size.min()) for size in sizes if len(size)]
        least = min(survivors, default=math.inf)
        reach = least if least < limit else math.inf
        return {n: self._bound(g, limit, reach) for n, g in gradient.items() if g.dim()}

    def _bound(self, gradient: Tensor, limit: float, reach: float) -> Interval:
        endless = torch.full_like(gradient, math.inf)
        zero = (
            gradient == 0 if self.percentile > 0 else torch.zeros_like(gradient, dtype=torch.bool)
        )
        low = torch.where(zero, torch.full_like(gradient, -reach), gradient)
        high = torch.where(zero, torch.full_like(gradient, reach), gradient)
        slack = gradient.abs() * ROUNDING
        low = torch.where(gradient <= -limit, -endless, low)
        high = torch.where(gradient <= -limit, gradient + slack, high)
        low = torch.where(gradient >= limit, gradient - slack, low)
        return Interval(low, torch.where(gradient >= limit, endless, high))

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The share of zeros, and the bound of the other values."""
        found: list[Trace] = []
        if self.percentile > 0:
            found.append(ZerosTrace(self.percentile / 100, "update", ties=True))
        if self.gamma is not None:
            found.append(BoundTrace(self.gamma * update.steps, of_training=True))
        return found

    def keeps_trace(self, trace: Trace) -> bool:
        """Values become zero or shorter, or stay."""
        return trace.kind in ("zeros", "columns", "norm", "bound")


def find_percentile(update: Update, percentile: float) -> float:
    """The percentile of all magnitudes, interpolated between the two nearest values.

    Args:
        update: The update; integer tensors do not count.
        percentile: From 0 to 100.

    >>> find_percentile(Update({"w": torch.tensor([-1.0, 2.0, 4.0])}), 75)
    3.0
    """
    floats = [v.flatten().abs() for v in update.change.values() if v.is_floating_point()]
    values = torch.cat([v.double() for v in floats]) if floats else torch.zeros(0)
    if not len(values):
        return 0.0
    place = percentile / 100 * (len(values) - 1)
    below = int(place)
    first = values.kthvalue(below + 1).values
    second = values.kthvalue(min(below + 2, len(values))).values
    return float(first + (place - below) * (second - first))
