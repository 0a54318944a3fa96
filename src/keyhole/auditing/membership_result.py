"""What a membership-inference experiment found."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from keyhole.auditing.finding import read_versions
from keyhole.auditing.membership_plan import MembershipPlan
from keyhole.auditing.membership_tables import inference_rows, membership_latex
from keyhole.auditing.tables import Row, to_csv, to_frame, write_if_asked
from keyhole.errors import DoesNotFit, RunFolderError
from keyhole.metrics.membership import RateAt
from keyhole.threat import Attacker

if TYPE_CHECKING:
    from pandas import DataFrame


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
    rates: Annotated[tuple[RateAt, ...], Field(min_length=1)]
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
    inferences: Annotated[tuple[Inference, ...], Field(min_length=1)]

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

    @classmethod
    def from_json(cls, found: Any, path: Path) -> Trial:
        """Reads what :meth:`to_json` wrote to ``path``."""
        return read_as(Trial, found, path)


@dataclass(frozen=True)
class MembershipResult:
    """All trials of a plan."""

    plan: MembershipPlan
    members: int
    others: int
    public: int
    trials: Annotated[tuple[Trial, ...], Field(min_length=1)]
    notes: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=read_versions)
    run: str | None = None
    """The run folder, where there is one."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.__dict__,
            "plan": self.plan.model_dump(mode="json"),
            "trials": [trial.to_json() for trial in self.trials],
        }

    def to_frame(self, *, per_image: bool = False) -> DataFrame:
        """A pandas data frame with one row for each attacker against each model.

        Args:
            per_image: Refused: a membership run keeps no scores of single images.

        Raises:
            DoesNotFit: pandas is not installed, or ``per_image`` is asked for.
        """
        return to_frame(self._rows(per_image))

    def to_csv(self, path: str | Path | None = None, *, per_image: bool = False) -> str:
        """The rows of :meth:`to_frame` as CSV; needs no pandas.

        Args:
            path: The file to write; None: only the text is returned.
            per_image: Refused, as by :meth:`to_frame`.
        """
        return write_if_asked(path, to_csv(self._rows(per_image)))

    def to_latex(self, path: str | Path | None = None) -> str:
        """A LaTeX table of all attackers.

        Args:
            path: The file to write; None: only the text is returned.
        """
        return write_if_asked(path, membership_latex(self))

    def _rows(self, per_image: bool) -> list[Row]:
        if per_image:
            raise DoesNotFit("a membership run keeps no scores of single images: leave it out")
        return inference_rows(self)

    @classmethod
    def from_json(cls, found: Any, path: Path) -> MembershipResult:
        """Reads what :meth:`to_json` wrote to ``path``."""
        return replace(read_as(MembershipResult, found, path), run=str(path.parent))


K = TypeVar("K")


def read_as(kind: type[K], found: Any, path: Path) -> K:
    """Builds ``kind`` from JSON that was read from ``path``; every field's type is checked."""
    try:
        return TypeAdapter(kind).validate_python(found)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise RunFolderError(
            f"{path} is damaged ({place}: {first['msg'].lower()}): start anew with --fresh"
        ) from None
