"""The loss-threshold attack: a model has lower losses on its training images than on others."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass
from torch import Tensor

from keyhole.attacks.membership.base import (
    MembershipAttack,
    MembershipProblem,
    confidence,
    cross_entropy,
)
from keyhole.attacks.membership.target_training import ReportTrained


@dataclass(frozen=True, kw_only=True)
class LossThreshold(MembershipAttack):
    """Scores a candidate by minus the loss of its true class.

    Args:
        reduce: Whether the losses of several views are averaged, or the least of them is taken.
    """

    reduce: Literal["mean", "min"] = "mean"

    name: ClassVar[str] = "loss"
    summary: ClassVar[str] = "the lower the loss, the more likely a member"
    paper: ClassVar[str] = "Yeom et al. 2018"

    def score(self, problem: MembershipProblem, report: ReportTrained) -> Tensor:
        candidates = problem.candidates
        logits = problem.query([problem.model], candidates, self.views)[0]
        loss = cross_entropy(confidence(logits, candidates.labels))
        return -(loss.mean(0) if self.reduce == "mean" else loss.amin(0))
