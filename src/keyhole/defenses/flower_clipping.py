"""Flower's client-side clipping, fixed or adaptive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.flower_mods import caveats_of_mods, require_flower, run_mod
from keyhole.defenses.traces import SCALED, NormTrace, Trace
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class FlowerClipping(Defense):
    """Clips the update by running Flower's own ``fixedclipping_mod`` or ``adaptiveclipping_mod``.

    In central DP the server adds the noise after it has averaged: a curious server sees what these
    mods send, clipped updates without noise. The adaptive mod also says whether the update was
    clipped. How the server adapts the norm from round to round is not part of the client.

    Args:
        kind: Which of the two mods.
        clipping_norm: The largest norm of the update, as the server sends it in this round.
    """

    kind: Literal["fixed", "adaptive"] = "fixed"
    clipping_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    name: ClassVar[str] = "flower-clipping"
    summary: ClassVar[str] = "Flower's client-side clipping for central DP: no noise on the client"
    paper: ClassVar[str] = "McMahan et al. 2018; Andrew et al. 2021 (adaptive), as in Flower's mods"
    paper_attacks: ClassVar[tuple[str, ...]] = ()

    def incompatibilities(self, model: nn.Module) -> list[str]:
        require_flower()
        return []

    def caveats(self, model: nn.Module) -> list[str]:
        noiseless = "flower-clipping: the server adds the noise, so that it sees updates without it"
        return [noiseless, *caveats_of_mods(model.parameters())]

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        mods = require_flower()
        mod = mods.fixedclipping_mod if self.kind == "fixed" else mods.adaptiveclipping_mod
        norm = update.norm()
        config = {"clipping_norm": self.clipping_norm}
        sent, metrics = run_mod(mod, update, side.generator, config)
        side.record(update_norm=norm, sent_norm=sent.norm(), **metrics)
        return sent

    def expected_traces(self, update: Update, model: nn.Module) -> Sequence[Trace]:
        """The norm."""
        return [NormTrace(self.clipping_norm)]

    def keeps_trace(self, trace: Trace) -> bool:
        return trace.kind in SCALED
