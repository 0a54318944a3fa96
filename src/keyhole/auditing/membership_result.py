"""What a membership-inference experiment found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from keyhole.auditing.finding import read_versions
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.auditing.membership_tables import inference_rows, membership_latex
from keyhole.auditing.tables import Row
from keyhole.auditing.tabular import TabularResult
from keyhole.errors import DoesNotFit
from keyhole.metrics.membership import RateAt
from keyhole.threat import Attacker


@dataclass(frozen=True)
class Inference:
    """How well one attacker told members from non-members.

    Args:
        attack: The attack, with those of its parameters that are not the defaults.
        attack_parameters: All parameters of the attack.
        attacker: Whether the attacker knows the defense.
        knowledge: What the attacker knew.
        auc: Area under the ROC curve.
        auc_low: Lower end of the AUC's 95% interval.
        auc_high: Upper end of the AUC's 95% interval.
        balanced_accuracy: Balanced accuracy at the threshold that is best in hindsight.
        rates: True-positive rates at low false-positive rates.
        roc: Points of the ROC curve: false-positive rate, true-positive rate.
        seconds: How long the attack took.
    """

    attack: str
    attack_parameters: dict[str, Any]
    attacker: Attacker
    knowledge: dict[str, Any]
    auc: float
    auc_low: float
    auc_high: float
    balanced_accuracy: float
    rates: Annotated[tuple[RateAt, ...], Field(min_length=1)]
    roc: tuple[tuple[float, float], ...]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "rates": [rate.to_json() for rate in self.rates]}


@dataclass(frozen=True)
class Trial:
    """One model under one defense after some epochs: how it learned, and what it gave away.

    Args:
        defense: The defense's name and parameters.
        epochs: Passes over the images.
        train_accuracy: Accuracy on the members.
        test_accuracy: Accuracy on all other images: the non-members and the public ones.
        train_loss: Mean loss on the members.
        test_loss: Mean loss on all other images.
        seconds: How long the training took.
        inferences: One for each attacker.
    """

    defense: dict[str, Any]
    epochs: int
    train_accuracy: float
    test_accuracy: float
    train_loss: float
    test_loss: float
    seconds: float
    inferences: Annotated[tuple[Inference, ...], Field(min_length=1)]

    @property
    def gap(self) -> float:
        """By how much the model is better on its own images: overfitting."""
        return self.train_accuracy - self.test_accuracy

    @property
    def worst(self) -> Inference:
        """The attacker with the highest AUC, by whom a defense is judged."""
        return max(self.inferences, key=lambda inference: inference.auc)

    def to_json(self) -> dict[str, Any]:
        found = [inference.to_json() for inference in self.inferences]
        worst = f"{self.worst.attack} ({self.worst.attacker})"
        return {**self.__dict__, "inferences": found, "gap": self.gap, "worst": worst}


@dataclass(frozen=True)
class MembershipResult(TabularResult):
    """All trials of a membership experiment.

    Args:
        plan: The plan.
        members: The number of images that the model was trained on.
        others: The number of non-members that attackers were asked about.
        public: The number of images that attackers had themselves.
        trials: One for each defense and each number of epochs.
        notes: What a reader should know, one line each.
        versions: Versions of the software.
        run: The run folder, if there is one.
    """

    plan: MembershipPlan
    members: int
    others: int
    public: int
    trials: Annotated[tuple[Trial, ...], Field(min_length=1)]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=read_versions)
    run: str | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as plain JSON values: what ``keyhole membership --json`` prints."""
        return {
            **self.__dict__,
            "plan": self.plan.to_json(),
            "trials": [trial.to_json() for trial in self.trials],
        }

    def to_rows(self, *, per_image: bool = False) -> list[Row]:
        """One row for each attacker against each model.

        Args:
            per_image: Refused, because a membership run keeps no scores of single images.

        Raises:
            DoesNotFit: ``per_image`` is asked for.
        """
        if per_image:
            raise DoesNotFit("a membership run keeps no scores of single images: leave it out")
        return inference_rows(self)

    def _build_latex(self) -> str:
        return membership_latex(self)
