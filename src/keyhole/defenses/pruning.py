"""Magnitude pruning of the update."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.defenses.base import ClientSide, Defense
from keyhole.defenses.capabilities import Interval
from keyhole.update import Update


@dataclass(frozen=True, kw_only=True)
class Pruning(Defense):
    """Sets the values of smallest magnitude to zero.

    Args:
        ratio: The share of values that become zero.
        scope: Whether values are ranked within their ``tensor`` or over the whole ``update``.

    >>> update = Update({"w": torch.tensor([0.1, -3.0, 0.2, 2.0])})
    >>> Pruning(ratio=0.5).on_update(update).change["w"]
    tensor([ 0., -3.,  0.,  2.])
    """

    ratio: Annotated[float, Field(ge=0, lt=1)] = 0.9
    scope: Literal["tensor", "update"] = "tensor"

    name: ClassVar[str] = "pruning"
    summary: ClassVar[str] = "zeroes the smallest values of the update"
    paper: ClassVar[str] = "Zhu et al. 2019 (DLG); Lin et al. 2018"
    paper_attacks: ClassVar[tuple[str, ...]] = ("dlg",)

    def on_update(self, update: Update, side: ClientSide | None = None) -> Update:
        side = side or ClientSide()
        floats = {k: v for k, v in update.change.items() if v.is_floating_point()}
        if self.scope == "tensor" or not floats:
            survives = {k: self._largest(v.flatten()).view_as(v) for k, v in floats.items()}
        else:
            everything = torch.cat([v.flatten() for v in floats.values()])
            sizes = [v.numel() for v in floats.values()]
            parts = torch.split(self._largest(everything), sizes)
            survives = {k: p.view_as(v) for (k, v), p in zip(floats.items(), parts, strict=True)}
        kept = sum(int(mask.sum()) for mask in survives.values())
        side.record(kept=kept, total=sum(v.numel() for v in floats.values()))
        return update.map(lambda name, v: torch.where(survives[name], v, torch.zeros_like(v)))

    def possible_values(self, update: Update) -> dict[str, Interval]:
        """A zero was no larger than the smallest value that survived in its tensor.

        Where none survived, as can happen with ``scope="update"``, the bound is the smallest
        surviving value of the whole update.
        """
        gradient = update.gradient()
        survivors = {name: g[g != 0].abs() for name, g in gradient.items()}
        least = {name: s.min() for name, s in survivors.items() if len(s)}
        if not least:
            return {}
        fallback = min(float(bound) for bound in least.values())
        intervals = {}
        for name, g in gradient.items():
            bound = least.get(name, torch.full((), fallback).to(g))
            limit = torch.where(g == 0, bound, torch.zeros_like(g))
            intervals[name] = Interval(g - limit, g + limit)
        return intervals

    def _largest(self, values: Tensor) -> Tensor:
        """A mask of the values that survive; ties are broken so that the count is exact."""
        kept = values.numel() - int(self.ratio * values.numel())
        mask = torch.zeros_like(values, dtype=torch.bool)
        mask[values.abs().topk(kept).indices] = True
        return mask
