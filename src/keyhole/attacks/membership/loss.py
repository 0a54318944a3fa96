"""The loss threshold: a model knows its training images better than others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import (
    MembershipAttack,
    Question,
    confidence,
    cross_entropy,
)
from keyhole.attacks.membership.recipe import Told


@dataclass(frozen=True, kw_only=True)
class LossThreshold(MembershipAttack):
    """Minus the loss of the true class: mean over the views, or the least of any view."""

    reduce: Literal["mean", "min"] = "mean"

    name: ClassVar[str] = "loss"
    summary: ClassVar[str] = "the lower the loss, the likelier a member"
    paper: ClassVar[str] = "Yeom et al. 2018"

    def score(self, question: Question, told: Told) -> Tensor:
        asked = question.candidates
        logits = question.outputs([question.model], asked, self.views)[0]
        loss = cross_entropy(confidence(logits, asked.labels))
        return -(loss.mean(0) if self.reduce == "mean" else loss.amin(0))
