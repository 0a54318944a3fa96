"""Who the attackers of an audit were: what each does, what it was given, how far it came."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from keyhole.attacks import ATTACKS
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack
from keyhole.auditing.verdict import HONEST, MALICIOUS
from keyhole.report.catalogue import summary_of
from keyhole.report.words import join_words
from keyhole.threat import Attacker

GIVEN = {
    "labels": "the images' labels",
    "masks": "the clients' dropout masks",
    "intercepted": "the images on their way to the client",
}
"""What an attacker may be given besides the model and the update, by the name in a finding."""


@dataclass(frozen=True)
class AttackerLine:
    """One attack, as a report introduces it.

    Args:
        name: The attack with its parameters that are not the usual ones.
        does: What it does; empty for one of another package.
        server: ``honest`` or ``malicious``.
        changes: What it changes in the model; empty for an honest server.
        kinds: ``naive``, ``paper``, ``adaptive``: those that were tried.
        given: What it was given besides the model and the update.
        settings: In how many settings it was tried.
        read_in: In how many of them it read an image.
        seeks_images: Whether it looks for images, not for labels alone.
    """

    name: str
    does: str
    server: str
    changes: str
    kinds: tuple[str, ...]
    given: str
    settings: int
    read_in: int
    seeks_images: bool


def list_attackers(findings: Sequence[Finding]) -> list[AttackerLine]:
    """One line for each attack, those of an honest server first, else in the audit's order.

    Args:
        findings: What the audit found.
    """
    groups: dict[tuple[bool, str], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((not finding.honest, label_attack(finding)), []).append(finding)
    order = sorted(groups.items(), key=lambda item: item[0][0])
    return [introduce_attack(name, group) for (_, name), group in order]


def introduce_attack(name: str, findings: Sequence[Finding]) -> AttackerLine:
    """What is to be known of one attack."""
    first = findings[0]
    kinds = {f.attacker for f in findings}
    given = [words for key, words in GIVEN.items() if any(f.knowledge.get(key) for f in findings)]
    changes = dict.fromkeys(str(f.knowledge["altered_model"]) for f in findings if not f.honest)
    read = [f for f in findings if "read" in f.metrics and f.metrics["read"].mean > 0]
    return AttackerLine(
        name=name,
        does=summary_of(ATTACKS[first.attack]) if first.attack in ATTACKS.names() else "",
        server=HONEST if first.honest else MALICIOUS,
        changes="; ".join(changes),
        kinds=tuple(kind.value for kind in Attacker if kind.value in kinds),
        given=join_words(given),
        settings=len({setting_of(f) for f in findings}),
        read_in=len({setting_of(f) for f in read}),
        seeks_images=first.reads_images,
    )


def setting_of(finding: Finding) -> tuple[str, str, str]:
    """What tells the settings of an audit apart."""
    return finding.model, finding.data, str(finding.defense)
