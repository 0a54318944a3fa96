"""What a membership-inference experiment found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from keyhole.audit.finding import versions
from keyhole.audit.membership_plan import MembershipPlan
from keyhole.metrics.membership import RateAt
from keyhole.threat import Attacker


@dataclass(frozen=True)
class Inference:
    """How well one attacker told members from non-members."""

    attack: str
    """Its name, with parameters that are not the usual ones."""
    attack_parameters: dict[str, Any]
    attacker: Attacker
    knowledge: dict[str, Any]
    auc: float
    auc_low: float
    auc_high: float
    balanced_accuracy: float
    """At the threshold that is best in hindsight."""
    rates: tuple[RateAt, ...]
    """True-positive rates at low false-positive rates."""
    roc: tuple[tuple[float, float], ...]
    """False- and true-positive rates."""
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "rates": [rate.to_json() for rate in self.rates]}


@dataclass(frozen=True)
class Trial:
    """One model under one defense after some epochs: how it learned, and what it gave away."""

    defense: dict[str, Any]
    epochs: int
    train_accuracy: float
    test_accuracy: float
    """On all images at hand that it was not trained on: the non-members and the public ones."""
    train_loss: float
    test_loss: float
    seconds: float
    inferences: tuple[Inference, ...]

    @property
    def gap(self) -> float:
        """By how much the model is better on its own images: overfitting."""
        return self.train_accuracy - self.test_accuracy

    @property
    def worst(self) -> Inference:
        """The attacker who told them apart best; a defense is worth what it withstands from it."""
        return max(self.inferences, key=lambda inference: inference.auc)

    def to_json(self) -> dict[str, Any]:
        found = [inference.to_json() for inference in self.inferences]
        worst = f"{self.worst.attack} ({self.worst.attacker})"
        return {**self.__dict__, "inferences": found, "gap": self.gap, "worst": worst}


@dataclass(frozen=True)
class MembershipResult:
    """All trials of a plan."""

    plan: MembershipPlan
    members: int
    others: int
    public: int
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=versions)

    def to_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "plan": self.plan.model_dump(mode="json"),
            "trials": [trial.to_json() for trial in self.trials],
        }
