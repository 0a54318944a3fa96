"""How well attacks told captured clients' images from others, as results hold it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from keyhole.auditing.finding_check import validate
from keyhole.metrics.membership import RateAt


@dataclass(frozen=True)
class CapturedInference:
    """How well one attack told a client's images from others.

    Args:
        attack: The attack's name.
        auc: Area under the ROC curve, over all clients that were attacked.
        auc_low: Lower end of the AUC's 95% interval.
        auc_high: Upper end of that interval.
        rates: True-positive rates at low false-positive rates.
        by_client: The AUC of each client.
    """

    attack: str
    auc: float
    auc_low: float
    auc_high: float
    rates: tuple[RateAt, ...]
    by_client: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self.__dict__, "rates": [rate.to_json() for rate in self.rates]}

    @classmethod
    def from_json(cls, values: Any) -> CapturedInference:
        """Reads what :meth:`to_json` gave.

        Args:
            values: The JSON object.
        """
        rates = [{k: v for k, v in rate.items() if k != "resolved"} for rate in values["rates"]]
        return validate(cls, {**values, "rates": rates})


@dataclass(frozen=True)
class CapturedMembership:
    """What a captured folder tells of who was in the clients' images.

    Args:
        captured: The folder.
        members: Images of the clients that attackers were asked about.
        others: Images of nobody that they were asked about.
        rounds: The rounds that were used.
        attacks: One for each attack.
        notes: What a reader should know, one line each.
    """

    captured: str
    members: int
    others: int
    rounds: tuple[int, ...]
    attacks: tuple[CapturedInference, ...]
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """What ``keyhole membership --captured DIR --json`` prints."""
        found = [each.to_json() for each in self.attacks]
        return {**self.__dict__, "rounds": list(self.rounds), "attacks": found}

    @classmethod
    def from_json(cls, values: Any) -> CapturedMembership:
        """Reads what :meth:`to_json` gave.

        Args:
            values: The JSON object.
        """
        attacks = tuple(CapturedInference.from_json(each) for each in values["attacks"])
        return replace(validate(cls, {**values, "attacks": []}), attacks=attacks)

    def to_lines(self) -> list[str]:
        """One line for each attack."""
        return [
            f"membership by {each.attack}: AUC {each.auc:.3f} "
            f"({each.auc_low:.3f} to {each.auc_high:.3f}), "
            + ", ".join(f"{r.rate:.1%} of members at {r.limit:.1%} FPR" for r in each.rates)
            for each in self.attacks
        ]
