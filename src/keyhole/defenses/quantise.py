"""Quantisation of the update to few bits a value."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.traces import LevelsTrace, Trace
from keyhole.update import Update

OFF = 32
"""Bits at which nothing is done."""
ROUNDING = 4
"""Rounding errors of a value between the client and the bounds."""


@dataclass(frozen=True, kw_only=True)
class Quantise(Defense):
    """Rounds every value to one of few levels of its tensor.

    ``uniform``: to the nearest of ``2^bits`` levels spread evenly from ``-m`` to ``m``, the
    tensor's largest magnitude. ``qsgd``: a sign and ``2^(bits-1) - 1`` multiples of the tensor's
    norm, each value rounded up or down at random, so that its expectation stays.

    Args:
        bits: Bits a value; 32: nothing is done.
        rounding: How values are rounded.

    >>> update = Update({"w": torch.tensor([-3.0, -0.5, 0.4, 3.0])})
    >>> Quantise(bits=2).on_update(update).change["w"]
    tensor([-3., -1.,  1.,  3.])
    """

    bits: Annotated[int, Field(ge=2, le=OFF)] = 4
    rounding: Literal["uniform", "qsgd"] = "uniform"

    name: ClassVar[str] = "quantise"
    summary: ClassVar[str] = "rounds the update's values to few levels"
    paper: ClassVar[str] = "Alistarh et al. 2017 (QSGD)"
    headline: ClassVar[tuple[str, ...]] = ("bits",)
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        if self.bits == OFF:
            return update
        protected = update.map(lambda _, tensor: self._round(tensor, side))
        side.record(bits=self.bits)
        return protected

    def _round(self, tensor: Tensor, side: ClientSide) -> Tensor:
        exact = tensor.double()
        if self.rounding == "uniform":
            step = measure_step(exact, self.bits)
            largest = exact.abs().max() if exact.numel() else step
            rounded = ((exact + largest) / step).round() * step - largest
        else:
            step = exact.norm() / (2 ** (self.bits - 1) - 1)
            draws = torch.rand(exact.shape, generator=side.generator_at(exact), device=exact.device)
            rounded = ((exact / step).abs() + draws).floor() * step * exact.sign()
        return torch.where(step > 0, rounded, exact).to(tensor.dtype)

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """Every value lay in the cell of its level.

        QSGD's step is read off the smallest magnitude that is not zero: a whole number of steps, so
        that the cells can be too wide and never too narrow. A tensor of zeros alone was zero: with
        three levels or more, chance rounds all values down once in 10^9 times at most. With one
        level, as of 2 bits, it happens in small tensors, which are not bounded then.
        """
        gradient = update.gradient()
        if self.bits == OFF:
            return {}
        if self.rounding == "uniform":
            return {name: bound_uniform(g, self.bits) for name, g in gradient.items()}
        silent = math.inf if self.bits == 2 else 0.0
        return {n: bound_qsgd(g, smallest_magnitude(g, silent)) for n, g in gradient.items()}

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The number of levels."""
        return [LevelsTrace(2**self.bits)] if self.bits < OFF else []

    def keeps_trace(self, trace: Trace) -> bool:
        """The largest magnitude is a level; zero is none of an even number of levels."""
        kept = {"bound"} if self.rounding == "uniform" else {"zeros", "columns"}
        return self.bits == OFF or trace.kind in kept


def measure_step(values: Tensor, bits: int) -> Tensor:
    """The distance of two levels, in a tensor whose largest magnitude is a level."""
    if not values.numel():
        return values.new_zeros(())
    step: Tensor = 2 * values.abs().max() / (2**bits - 1)
    return step


def smallest_magnitude(values: Tensor, default: float) -> float:
    """The smallest magnitude that is not zero; ``default`` where all are."""
    return float(values[values != 0].abs().min()) if values.any() else default


def bound_uniform(values: Tensor, bits: int) -> Interval:
    """Half a step to both sides, and rounding, but not beyond the largest magnitude."""
    largest = values.abs().max() if values.numel() else values.new_zeros(())
    reach = measure_step(values, bits) / 2 + ROUNDING * torch.finfo(values.dtype).eps * largest
    return Interval((values - reach).clamp_min(-largest), (values + reach).clamp_max(largest))


def bound_qsgd(values: Tensor, step: float) -> Interval:
    """A step to both sides, and rounding, but the sign stays where it shows."""
    reach = step + ROUNDING * torch.finfo(values.dtype).eps * (values.abs() + step)
    low = torch.where(values > 0, (values - reach).clamp_min(0), values - reach)
    high = torch.where(values < 0, (values + reach).clamp_max(0), values + reach)
    return Interval(low, high)
