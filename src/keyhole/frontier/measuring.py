"""Measures one setting with one seed: a training, and the attacks at its first and last round."""

from __future__ import annotations

from pathlib import Path

import torch

from keyhole.auditing.finding import Finding
from keyhole.auditing.results import AuditResult
from keyhole.auditing.verdict_words import name_attacker
from keyhole.defenses import DEFENSES
from keyhole.federation import train
from keyhole.federation.training_folder import CHECKPOINT
from keyhole.frontier.moments import audit_moment
from keyhole.frontier.plan import FrontierPlan
from keyhole.frontier.seed_outcome import Reading, SeedOutcome
from keyhole.parameters import make_recordable
from keyhole.progress import NullProgress, Progress

START, END = "first round", "last round"
"""The moments at which clients are attacked: with the first weights, and with the trained ones."""


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
