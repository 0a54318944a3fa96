"""The rows of the field's table: one for each defense, strength and network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from keyhole.attacks import ATTACKS
from keyhole.auditing import choose_attackers
from keyhole.defenses import DEFENSES
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


class Gap(StrEnum):
    """Why a cell of the table has no figure, as the table says it."""

    NOT_RUN = "not run"
    NO_ATTACKER = "no attacker"
    NO_FIT = "does not fit"


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
        expected: The attackers who have an attack to use, by server.
        unfit: Why the defense, or the attack of one server, does not fit the network: by server,
            and for ``accuracy``.
        audited: The attackers whose attacks apply to the network, by server of an audit.
        skipped: Why attacks do not apply to the network, by server and attack.
        acted: ``acted``, ``weak``, ``idle`` or ``unknown``; empty: not measured.
    """

    defense: str
    family: str
    strength: str
    network: str
    accuracy: float | None = None
    readings: dict[tuple[str, str], Reading] = field(default_factory=dict)
    expected: set[tuple[str, str]] = field(default_factory=set)
    unfit: dict[str, str] = field(default_factory=dict)
    audited: dict[str, set[str]] = field(default_factory=dict)
    skipped: dict[tuple[str, str], str] = field(default_factory=dict)
    acted: str = ""

    def worst(self, server: str) -> Reading | None:
        """What the best attacker with one kind of server read."""
        found = [r for (kind, _), r in self.readings.items() if kind == server]
        return max(found, key=lambda each: (each.read, each.psnr), default=None)

    @property
    def is_measured(self) -> bool:
        """Whether it has any figure."""
        return bool(self.readings) or self.accuracy is not None

    def find_gap(self, server: str, attacker: str) -> Gap:
        """Why an attacker with one kind of server has no reading.

        Args:
            server: ``honest`` or ``malicious``.
            attacker: ``naive``, ``paper`` or ``adaptive``.
        """
        if (server, attacker) not in self.expected:
            return Gap.NO_ATTACKER
        fits = server not in self.unfit and attacker in self.audited.get(server, {attacker})
        return Gap.NOT_RUN if fits else Gap.NO_FIT


def collect_points(study: Study, results: Results) -> list[Point]:
    """One point for each setting of which anything was measured, in the study's order."""
    points: dict[tuple[str, str, str], Point] = {}
    for experiment in study.experiments:
        result = results.get(experiment.name)
        if isinstance(experiment, FieldAudit):
            point = find_point(points, experiment, experiment.stage.defenses[0])
            add_audit(point, experiment, result)
        elif isinstance(experiment, FieldAccuracy):
            point = find_point(points, experiment, experiment.defense)
            if result is not None and UNFIT in result:
                point.unfit["accuracy"] = result[UNFIT]
            elif result is not None:
                point.accuracy = result["accuracy"]
    return [point for point in points.values() if point.is_measured or point.unfit]


def find_point(
    points: dict[tuple[str, str, str], Point], cell: FieldAudit | FieldAccuracy, defense: str
) -> Point:
    """The point that a cell belongs to; a new one if it is the first."""
    key = cell.family, cell.strength, cell.network
    return points.setdefault(key, Point(defense, *key))


def add_audit(point: Point, audit: FieldAudit, result: Mapping[str, Any] | None) -> None:
    """Adds what an audit found to its point, and who could have attacked in it."""
    point.expected |= {(audit.server, who) for who in list_attackers(audit)}
    if result is None:
        return
    if UNFIT in result:
        point.unfit[audit.server] = result[UNFIT]
        return
    late = {who for _, who in audit.find_missing(result)}
    own = {row["attacker"] for row in result["rows"].values()}
    point.audited[audit.server] = late | own
    point.skipped |= {(audit.server, a): why for a, why in result.get("skipped", {}).items()}
    point.readings |= read_rows(audit.server, result)
    point.acted = (result["acted"] or {}).get("status", "")


def list_attackers(audit: FieldAudit) -> set[str]:
    """The kinds of attackers who have an attack to use, whether it fits the network or not."""
    defense = DEFENSES.parse(audit.stage.defenses[0])
    attacks = [ATTACKS.parse(attack) for attack in audit.stage.attacks]
    return {str(who) for attack in attacks for who in choose_attackers(attack, defense)}


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
