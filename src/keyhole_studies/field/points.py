"""The rows of the field's table: one for each defense, strength and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.field.experiments import UNFIT, FieldAccuracy, FieldAudit
from keyhole_studies.result_files import Results

ATTACKERS = ("naive", "paper", "adaptive")
SERVERS = ("honest", "malicious")


@dataclass(frozen=True)
class Reading:
    """The most that one kind of attacker read in one audit.

    Args:
        read: The share of images that were read.
        psnr: The mean PSNR of the attack that read most, in dB.
        attack: That attack.
    """

    read: float
    psnr: float
    attack: str


@dataclass
class Point:
    """All that is known of one defense at one strength on one network.

    Args:
        defense: The defense with its parameters.
        family: The defense's line in ``cells.toml``.
        strength: ``off``, ``weak``, ``medium`` or ``strong``.
        network: The network's table in ``cells.toml``.
        accuracy: After training; None: not measured.
        readings: By server and attacker.
        unfit: Why the defense, or one server's attack, does not fit the network; empty: all fit.
        acted: ``acted``, ``weak``, ``idle`` or ``unknown``; empty: not measured.
    """

    defense: str
    family: str
    strength: str
    network: str
    accuracy: float | None = None
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)
    unfit: str = ""
    acted: str = ""

    def worst(self, server: str) -> Reading | None:
        """What the best attacker with one kind of server read."""
        found = [r for (kind, _), r in self.readings.items() if kind == server]
        return max(found, key=lambda each: (each.read, each.psnr), default=None)


def collect_points(study: Study, results: Results) -> list[Point]:
    """One point for each setting of which anything was measured, in the study's order."""
    points: dict[tuple[str, str, str], Point] = {}
    for experiment in study.experiments:
        result = results.get(experiment.name)
        if result is None or not isinstance(experiment, FieldAudit | FieldAccuracy):
            continue
        if isinstance(experiment, FieldAudit):
            defense = experiment.stage.defenses[0]
        else:
            defense = experiment.defense
        key = experiment.family, experiment.strength, experiment.network
        point = points.setdefault(key, Point(defense, *key))
        if UNFIT in result:
            point.unfit = result[UNFIT]
        elif isinstance(experiment, FieldAccuracy):
            point.accuracy = result["accuracy"]
        else:
            point.readings |= read_rows(experiment.server, result)
            point.acted = (result["acted"] or {}).get("status", "")
    return list(points.values())


def read_rows(server: str, result: Mapping[str, Any]) -> dict[tuple[str, str], Reading]:
    """What each kind of attacker read in one audit, by its best attack."""
    found: dict[tuple[str, str], Reading] = {}
    for name, row in result["rows"].items():
        if "read" not in row["metrics"]:
            continue
        means = {metric: row["metrics"][metric]["mean"] for metric in ("read", "psnr")}
        reading = Reading(means["read"], means["psnr"], name.partition(" (")[0])
        key = server, row["attacker"]
        before = found.get(key)
        if before is None or (reading.read, reading.psnr) > (before.read, before.psnr):
            found[key] = reading
    return found
