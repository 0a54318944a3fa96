"""One setting with one seed: what it costs, and what everybody who attacked it read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import validate
from keyhole.auditing.results import AuditResult
from keyhole.auditing.verdict_words import name_attacker
from keyhole.defenses import DEFENSES
from keyhole.federation import train
from keyhole.federation.training_folder import CHECKPOINT
from keyhole.frontier.moments import audit_moment
from keyhole.frontier.plan import FrontierPlan
from keyhole.parameters import make_recordable
from keyhole.progress import NullProgress, Progress

START, END = "first round", "last round"
"""The moments at which clients are attacked: with the first weights, and with the trained ones."""


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
        return validate(cls, values)


def measure_setting(
    plan: FrontierPlan,
    defense: str,
    seed: int,
    folder: Path,
    *,
    data_dir: str | None = None,
    device: torch.device | None = None,
    progress: Progress | None = None,
) -> SeedOutcome:
    """Trains under one defense, and attacks clients of the first and of the last round.

    The same call continues in the same folder where it was stopped.

    Args:
        plan: The frontier.
        defense: The clients' defense.
        seed: Seed of all random numbers.
        folder: The folder of the training and of both audits.
        data_dir: The folder of data sets that are read from files.
        device: The device to train and to attack on; None: the CPU.
        progress: Shows how much is done; None: nothing is shown.
    """
    place, shown = device or torch.device("cpu"), progress or NullProgress()
    shown.show(f"{plan.rounds} rounds under {defense}, seed {seed}")
    trained = train(
        plan.training_plan(defense, seed), out=folder / "train", data_dir=data_dir, device=place
    )
    moments = {START: plan.weights, END: folder / "train" / CHECKPOINT}
    audits = {
        moment: audit_moment(
            plan,
            defense,
            seed,
            weights=weights,
            out=folder / moment.replace(" ", "-"),
            data_dir=data_dir,
            device=place,
            progress=shown,
        )
        for moment, weights in moments.items()
    }
    spec = DEFENSES.parse(defense).spec
    return SeedOutcome(
        defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
        seed=seed,
        accuracy=float(trained.rounds[-1]["accuracy"]),
        seconds=sum(float(line["seconds"]) for line in trained.rounds),
        rounds=len(trained.rounds),
        readings=tuple(
            reading for moment, each in audits.items() for reading in read_findings(each, moment)
        ),
        skipped={s.attack: s.why for each in audits.values() for s in each.skipped},
        attack_seconds=sum(f.seconds for each in audits.values() for f in each.findings),
    )


def read_findings(result: AuditResult, moment: str) -> list[Reading]:
    """What each attacker on images read."""
    return [make_reading(f, moment) for f in result.findings if "read" in f.metrics]


def make_reading(finding: Finding, moment: str) -> Reading:
    values = finding.metrics["read"].per_image
    return Reading(name_attacker(finding), moment, round(sum(values)), len(values))


def pool_readings(outcomes: Sequence[SeedOutcome]) -> Mapping[tuple[str, str], Reading]:
    """The readings of each attacker at each moment, over all seeds."""
    pooled: dict[tuple[str, str], Reading] = {}
    for reading in (each for outcome in outcomes for each in outcome.readings):
        key = reading.attacker, reading.moment
        before = pooled.get(key, Reading(*key, 0, 0))
        pooled[key] = Reading(*key, before.read + reading.read, before.images + reading.images)
    return pooled
