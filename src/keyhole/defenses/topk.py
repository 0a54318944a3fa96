"""Top-k sparsification of the update, with error feedback if wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.kept_tensors import read_kept, write_kept
from keyhole.defenses.magnitudes import Scope, bound_zeros, keep_largest
from keyhole.defenses.traces import THINNED, Trace, ZerosTrace
from keyhole.update import Update

RESIDUAL = "topk-residual"
"""The name under which a client keeps what it has not sent yet."""


@dataclass(frozen=True, kw_only=True)
class TopK(Defense):
    """Sends the values of largest magnitude alone.

    With error feedback a client adds what it did not send to the update of its next round. What is
    sent late is sent all the same.

    Args:
        k: The share of values that are sent, rounded up to a whole number of them.
        scope: Whether values are ranked within their ``tensor`` or over the whole ``update``.
        error_feedback: Whether the client keeps the rest for the next round.

    >>> import torch
    >>> update = Update({"w": torch.tensor([0.1, -3.0, 0.2, 2.0])})
    >>> TopK(k=0.25).on_update(update).change["w"]
    tensor([ 0., -3.,  0.,  0.])
    """

    k: Annotated[float, Field(gt=0, le=1)] = 0.1
    scope: Scope = "update"
    error_feedback: bool = False

    name: ClassVar[str] = "topk"
    summary: ClassVar[str] = "sends the largest values of the update alone"
    paper: ClassVar[str] = "Aji and Heafield 2017; Stich et al. 2018 (error feedback)"
    headline: ClassVar[tuple[str, ...]] = ("k",)
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        whole = update
        if self.error_feedback:
            late = read_kept(side.memory.get(RESIDUAL), update.change, self.name)
            whole = update.map(lambda name, v: v + late[name] if name in late else v)
        sent, kept, total = keep_largest(whole, 1 - self.k, self.scope)
        side.record(kept=kept, total=total)
        if self.error_feedback:
            rest = {
                name: (v - sent.change[name]).contiguous()
                for name, v in whole.change.items()
                if v.is_floating_point()
            }
            side.memory[RESIDUAL] = write_kept(rest)
            side.record(residual_norm=Update(rest).norm())
        return sent

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """A zero was no larger than the smallest value sent; with error feedback none is bounded.

        With it the values sent hold those of earlier rounds, too.
        """
        return {} if self.error_feedback else bound_zeros(update.gradient(), self.scope)

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The share of zeros."""
        return [ZerosTrace(1 - self.k, self.scope)] if self.k < 1 else []

    def keeps_trace(self, trace: Trace) -> bool:
        """None where what earlier rounds left is added."""
        return trace.kind in THINNED and not self.error_feedback
