"""The signs of the update alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.traces import LevelsTrace, Trace
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class SignSgd(Defense):
    """Sends the sign of every value, and one magnitude for all values of a tensor.

    Args:
        step: That magnitude, in the units of the update; None: the tensor's mean magnitude.

    >>> update = Update({"w": torch.tensor([-3.0, -0.5, 0.0, 0.5])})
    >>> SignSgd().on_update(update).change["w"]
    tensor([-1., -1.,  0.,  1.])
    """

    step: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None

    name: ClassVar[str] = "signsgd"
    summary: ClassVar[str] = "sends the signs of the update's values"
    paper: ClassVar[str] = "Bernstein et al. 2018; Karimireddy et al. 2019 (scaled by the mean)"
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        protected = update.map(lambda _, tensor: self._keep_signs(tensor))
        floats = [v for v in update.change.values() if v.is_floating_point()]
        side.record(zeros=sum(int((v == 0).sum()) for v in floats))
        return protected

    def _keep_signs(self, tensor: Tensor) -> Tensor:
        if not tensor.numel():
            return tensor
        size = tensor.double().abs().mean() if self.step is None else self.step
        return (tensor.sign().double() * size).to(tensor.dtype)

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """Each value had its sign.

        Where the mean magnitude is sent, none was larger than the sum of all magnitudes: that mean,
        times the number of values, zeros included.
        """
        bounds = {}
        for name, g in update.gradient().items():
            mean = float(g.abs().max()) if self.step is None and g.numel() else float("inf")
            most = mean * g.numel() * (1 + 1e-5)
            low = torch.where(g < 0, torch.full_like(g, -most), torch.zeros_like(g))
            high = torch.where(g > 0, torch.full_like(g, most), torch.zeros_like(g))
            bounds[name] = Interval(low, high)
        return bounds

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """Three values a tensor: a magnitude, minus it, and zero."""
        return [LevelsTrace(3)]

    def keeps_trace(self, trace: Trace) -> bool:
        """A zero has no sign."""
        return trace.kind in ("zeros", "columns")
