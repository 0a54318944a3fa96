"""Dropout during local training: the randomness the DIA paper breaks."""

from __future__ import annotations

import copy
from typing import Annotated, ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses.base import ClientSide, Defense


@dataclass(frozen=True, kw_only=True)
class Dropout(Defense):
    """Sets the drop rate at every dropout site the model has.

    Sites are dropout layers, the attention dropout inside ``nn.MultiheadAttention``, and the
    ``drop_rate`` that timm's convolutional networks apply before their head.

    Args:
        p: The probability with which a unit is dropped.
    """

    p: Annotated[float, Field(ge=0, lt=1)] = 0.25

    name: ClassVar[str] = "dropout"
    summary: ClassVar[str] = "trains with dropout at every dropout site of the model"
    paper: ClassVar[str] = "Scheliga et al. 2023 (DIA)"
    paper_attacks: ClassVar[tuple[str, ...]] = ("ig", "wiig", "dia")
    hides_masks: ClassVar[bool] = True

    def incompatibilities(self, model: nn.Module) -> list[str]:
        if count_sites(model):
            return []
        return [
            "it has no dropout layers whose rate could be set: add nn.Dropout(0.0) where wanted"
        ]

    def on_model(self, model: nn.Module, side: ClientSide | None = None) -> nn.Module:
        self.validate(model)
        protected = copy.deepcopy(model)
        for module in protected.modules():
            if isinstance(module, nn.modules.dropout._DropoutNd):
                module.p = self.p
            elif isinstance(module, nn.MultiheadAttention):
                module.dropout = self.p
            elif has_functional_dropout(module):
                module.drop_rate = self.p  # type: ignore[assignment]
        if side is not None:
            side.record(dropout_sites=count_sites(protected))
        return protected


def count_sites(model: nn.Module) -> int:
    """How many places in ``model`` drop values, or would with a rate above 0."""
    return sum(
        isinstance(m, nn.modules.dropout._DropoutNd | nn.MultiheadAttention)
        or has_functional_dropout(m)
        for m in model.modules()
    )


def has_functional_dropout(module: nn.Module) -> bool:
    """Whether a timm network drops by ``F.dropout(x, p=self.drop_rate)`` and not by a layer."""
    return isinstance(getattr(module, "drop_rate", None), float | int) and not any(
        isinstance(m, nn.modules.dropout._DropoutNd) for m in module.modules()
    )
