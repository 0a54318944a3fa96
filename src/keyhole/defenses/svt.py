"""The sparse vector technique: the filter of NVIDIA FLARE, accounted for as it is."""

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

PASSES = 10_000
"""Passes over the values that are left, until enough of them are chosen."""
UNLIKELY = 1e-6
"""The probability with which noise exceeds the bounds that :meth:`Svt.possible_values` gives."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True)
class Svt(Defense):
    """Sends a noisy choice of values with noise, as NVIDIA FLARE's ``SVTPrivacy`` does.

    With ``v = change / steps`` and n = ``ceil(fraction * values)``: pass after pass, a value is
    accepted where ``|clip(v, gamma)| + Lap(4 gamma n / e2) >= tau + Lap(2 gamma / e1)``, until n
    are, with ``e1 = epsilon`` and ``e2 = e1 (2 n)^(2/3)``. Of these, n are drawn, with replacement
    unless told otherwise. They are sent as ``clip(v + Lap(2 gamma / e3), gamma)`` with
    ``e3 = noise_var``, all others as 0. Scalars are left alone.

    What this spends is :meth:`spent`, ``e1 + e2 + n e3``, and not ``epsilon``. Even that holds only
    if values are within gamma before the noise is added: they are clipped after it, so that no
    finite budget covers larger ones.

    Args:
        fraction: The share of values that are sent, at most.
        epsilon: The budget of the threshold alone.
        noise_var: The budget of each value sent; not a variance.
        gamma: The largest magnitude sent, of a step's change.
        tau: The threshold.
        replace: Whether values are drawn with replacement; 37% of the choice is lost then.
    """

    fraction: Annotated[float, Field(gt=0, le=1)] = 0.1
    epsilon: Positive = 0.1
    noise_var: Positive = 0.1
    gamma: Positive = 1e-5
    tau: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-6
    replace: bool = True

    name: ClassVar[str] = "svt"
    summary: ClassVar[str] = "sends a noisy choice of values with noise (NVIDIA FLARE)"
    paper: ClassVar[str] = "Dwork and Roth 2014; Li et al. 2019, as in NVIDIA FLARE's SVTPrivacy"
    headline: ClassVar[tuple[str, ...]] = ("epsilon", "gamma")
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def spent(self, values: int) -> float:
        """The budget that one round spends: ``e1 + e2 + n e3``.

        Args:
            values: How many values the update has.

        >>> round(Svt().spent(7_000_000))
        71252
        """
        count = math.ceil(self.fraction * values)
        return self.epsilon * (1 + math.cbrt(2.0 * count) ** 2) + count * self.noise_var

    def caveats(self, model: nn.Module) -> list[str]:
        values = sum(p.numel() for p in model.parameters())
        return [
            f"svt: a round spends epsilon = {self.spent(values):,.0f}, not {self.epsilon:g}, and "
            f"that only if no change of a step exceeds gamma = {self.gamma:g} before its noise"
        ]

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        arrays = {k: v for k, v in update.change.items() if v.is_floating_point() and v.dim()}
        if not sum(v.numel() for v in arrays.values()):
            return update
        values = torch.cat([v.flatten().double() for v in arrays.values()]) / update.steps
        draw = side.generator_at(values)
        count = math.ceil(self.fraction * len(values))
        chosen = self._choose(values, count, draw)
        noisy = values[chosen] + laplace(values[chosen], 2 * self.gamma / self.noise_var, draw)
        sent = torch.zeros_like(values)
        sent[chosen] = noisy.clamp(-self.gamma, self.gamma)
        parts = torch.split(sent * update.steps, [v.numel() for v in arrays.values()])
        found = {k: p.view_as(v).to(v) for (k, v), p in zip(arrays.items(), parts, strict=True)}
        side.record(sent=len(chosen), epsilon_spent=self.spent(len(values)))
        return update.map(lambda name, tensor: found.get(name, tensor))

    def _choose(self, values: Tensor, count: int, draw: torch.Generator) -> Tensor:
        """The indices of the values that are sent, each once."""
        second = self.epsilon * math.cbrt(2.0 * count) ** 2
        threshold = self.tau + laplace(values[:1], 2 * self.gamma / self.epsilon, draw)
        size = values.abs().clamp(max=self.gamma)
        accepted = torch.zeros_like(values, dtype=torch.bool)
        for _ in range(PASSES):
            noise = laplace(values, 4 * self.gamma * count / second, draw)
            accepted |= size + noise >= threshold
            if int(accepted.sum()) >= count:
                break
        found = accepted.nonzero().flatten()
        device = values.device
        if self.replace:
            drawn = torch.randint(len(found), (count,), generator=draw, device=device)
        else:
            drawn = torch.randperm(len(found), generator=draw, device=device)[:count]
        chosen: Tensor = torch.unique(found[drawn])
        return chosen

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """A value sent lay within the noise of what is shown, or beyond; a zero says nothing.

        The noise stays within these bounds but with a probability of one in a million per value.
        """
        scale = 1 / update.lr
        noise = 2 * self.gamma / self.noise_var * math.log(1 / UNLIKELY) * scale
        limit = self.gamma * scale * (1 - 1e-5)
        bounds = {}
        for name, g in update.gradient().items():
            if not g.dim():
                continue
            endless = torch.full_like(g, math.inf)
            low = torch.where((g == 0) | (g <= -limit), -endless, g - noise)
            bounds[name] = Interval(low, torch.where((g == 0) | (g >= limit), endless, g + noise))
        return bounds

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The share of zeros, and the bound of the values sent."""
        bound = BoundTrace(self.gamma * update.steps, of_training=True)
        return [ZerosTrace(1 - self.fraction, "update"), bound] if self.fraction < 1 else [bound]


def laplace(like: Tensor, scale: float, draw: torch.Generator) -> Tensor:
    """Laplace noise of that scale, in the shape and type of ``like``."""
    uniform = torch.rand(like.shape, generator=draw, device=draw.device).to(like) - 0.5
    return -scale * uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-9))
