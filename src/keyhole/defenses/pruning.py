"""Magnitude pruning of the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.magnitudes import Scope, bound_zeros, keep_largest
from keyhole.defenses.traces import THINNED, Trace, ZerosTrace
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Pruning(Defense):
    """Sets the values of smallest magnitude to zero.

    Args:
        ratio: The share of values that become zero.
        scope: Whether values are ranked within their ``tensor`` or over the whole ``update``.

    >>> import torch
    >>> update = Update({"w": torch.tensor([0.1, -3.0, 0.2, 2.0])})
    >>> Pruning(ratio=0.5).on_update(update).change["w"]
    tensor([ 0., -3.,  0.,  2.])
    """

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.9
    scope: Scope = "tensor"

    name: ClassVar[str] = "pruning"
    summary: ClassVar[str] = "zeroes the smallest values of the update"
    paper: ClassVar[str] = "Zhu et al. 2019 (DLG); Lin et al. 2018"
    paper_attacks: ClassVar[tuple[str, ...]] = ("dlg",)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        pruned, kept, total = keep_largest(update, self.ratio, self.scope)
        side.record(kept=kept, total=total)
        return pruned

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """A zero was no larger than the smallest value that survived."""
        return bound_zeros(update.gradient(), self.scope)

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The share of zeros."""
        return [ZerosTrace(self.ratio, self.scope)] if self.ratio > 0 else []

    def keeps_trace(self, trace: Trace) -> bool:
        return trace.kind in THINNED
