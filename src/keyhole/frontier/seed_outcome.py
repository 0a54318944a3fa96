"""One setting with one seed: what it costs, and what everybody who attacked it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keyhole.auditing.finding_check import validate


@dataclass(frozen=True)
class Reading:
    """What one attacker read at one moment.

    Args:
        attacker: The attack and who used it: ``ig (adaptive)``.
        moment: ``first round`` or ``last round``.
        read: How many images were read.
        images: How many there were.
    """

    attacker: str
    moment: str
    read: int
    images: int


@dataclass(frozen=True)
class SeedOutcome:
    """What was measured of one setting with one seed.

    Args:
        defense: ``name`` and ``parameters`` of the defense.
        seed: The seed.
        accuracy: Accuracy after the last round.
        seconds: Seconds of training.
        rounds: Rounds of training.
        readings: What each attacker read at each moment.
        skipped: Attacks that do not apply, and why.
        attack_seconds: Seconds of attack.
    """

    defense: dict[str, Any]
    seed: int
    accuracy: float
    seconds: float
    rounds: int
    readings: tuple[Reading, ...]
    skipped: dict[str, str]
    attack_seconds: float

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON holds it."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> SeedOutcome:
        """Reads what :meth:`to_json` gave.

        Args:
            values: The JSON object.

        Raises:
            ValueError: A frontier could not have written it.
        """
        found = validate(cls, values)
        for each in found.readings:
            if each.images < 1 or not 0 <= each.read <= each.images:
                raise ValueError(f"{each.read} of {each.images} images cannot have been read")
        if not 0 <= found.accuracy <= 1 or found.rounds < 1 or found.seconds < 0:
            raise ValueError("accuracy, rounds or seconds cannot be right")
        return found


def pool_readings(outcomes: Sequence[SeedOutcome]) -> Mapping[tuple[str, str], Reading]:
    """The readings of each attacker at each moment, over all seeds."""
    pooled: dict[tuple[str, str], Reading] = {}
    for reading in (each for outcome in outcomes for each in outcome.readings):
        key = reading.attacker, reading.moment
        before = pooled.get(key, Reading(*key, 0, 0))
        pooled[key] = Reading(*key, before.read + reading.read, before.images + reading.images)
    return pooled
