"""The update in half precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.defenses.traces import PrecisionTrace, Trace
from keyhole.update import Update

KINDS = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Half(Defense):
    """Rounds the update to half precision, as clients do that save bandwidth.

    The tensors keep their type, as a server sees them that computes in it. Values beyond the range
    of ``float16`` become its largest.

    Args:
        kind: The type that values are rounded to; ``float32``: nothing is done.

    >>> Half().on_update(Update({"w": torch.tensor([0.1])})).change["w"].item()
    0.0999755859375
    """

    kind: Literal["float16", "bfloat16", "float32"] = "float16"

    name: ClassVar[str] = "half"
    summary: ClassVar[str] = "rounds the update to half precision"
    paper: ClassVar[str] = "Micikevicius et al. 2018"
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        if self.kind not in KINDS:
            return update
        kind = KINDS[self.kind]
        most, beyond = torch.finfo(kind).max, 0

        def round_values(_: str, tensor: Tensor) -> Tensor:
            nonlocal beyond
            beyond += int((tensor.abs() > most).sum())
            return tensor.clamp(-most, most).to(kind).to(tensor.dtype)

        rounded = update.map(round_values)
        (side or ClientSide()).record(beyond_range=beyond)
        return rounded

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """Each value lay within one rounding of what is shown."""
        if self.kind not in KINDS:
            return {}
        about = torch.finfo(KINDS[self.kind])
        scale = 1 / (update.lr * update.steps)
        least = about.tiny * about.eps * scale
        bounds = {}
        for name, g in update.gradient().items():
            reach = (g.abs() * about.eps).clamp_min(least)
            beyond = g.abs() >= about.max * scale * (1 - 1e-6)
            reach = torch.where(beyond, torch.full_like(reach, float("inf")), reach)
            bounds[name] = Interval(g - reach, g + reach)
        return bounds

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """That every value fits the shorter type."""
        return [PrecisionTrace(KINDS[self.kind])] if self.kind in KINDS else []

    def keeps_trace(self, trace: Trace) -> bool:
        """Equal values stay equal, and zeros zero; others may grow."""
        return self.kind not in KINDS or trace.kind in ("zeros", "columns", "levels")
