"""The verdict on a defense: the worst attacker wins, and nothing is ever called safe.

Attackers with an honest server are never ranked with those who need a malicious one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.defense_acted import DefenseActed, choose_worst
from keyhole.auditing.finding import Finding, acted_to_json
from keyhole.auditing.regime_map import quote_map
from keyhole.auditing.verdict_words import (
    describe_broken,
    describe_not_broken,
    describe_notice,
    describe_unscored,
    describe_untested,
    name_attacker,
    name_attackers,
)
from keyhole.defenses import DEFENSES
from keyhole.errors import KeyholeError
from keyhole.spelling import spell
from keyhole.threat import Attacker

BROKEN, NOT_BROKEN = "broken", "not broken"
NOT_SCORED, NOT_TESTED = "not scored", "not tested"

HONEST, MALICIOUS = "honest", "malicious"
ALONE = "only a server that alters the model was tried, no honest one"


@dataclass(frozen=True)
class MaliciousVerdict:
    """What became of a defense where the server changes the model before it sends it out.

    Args:
        status: As in :class:`Verdict`.
        by: The worst attacker: attack and kind; None if no image was read.
        read: Share of the victims' images that the worst attacker read; None: nobody can say.
        changed: What the worst attacker changed in the model, in words; if no image was read, all
            that was changed.
        tried: All attackers with a malicious server.
        words: The verdict as a sentence.
        noticed: Whether a client that checks what it receives (``keyhole guard --incoming``) would
            have noticed the change; None: not checked.
        alone: Whether no attack on images with an honest server was run. The whole verdict is then
            about the malicious one.
    """

    status: str
    by: str | None
    read: float | None
    changed: str
    tried: tuple[str, ...]
    words: str
    noticed: bool | None = None
    alone: bool = False


@dataclass(frozen=True)
class VerdictLine:
    """One line of a verdict, as reports show it.

    Args:
        server: ``honest server`` or ``malicious server``; empty if no malicious one was tried.
        status: The status with this server.
        words: The verdict on this server as a sentence.
        changed: What the server changed in the model; empty if it is honest.
    """

    server: str
    status: str
    words: str
    changed: str = ""

    @property
    def subject(self) -> str:
        """The server and what it changes, before a colon; empty as ``server`` is."""
        how = f" (changes the model: {self.changed})" if self.changed else ""
        return f"{self.server}{how}: " if self.server else ""

    def __str__(self) -> str:
        return f"{self.subject}{self.words}"


@dataclass(frozen=True)
class Verdict:
    """What became of one defense on one model and data set.

    An honest and a malicious server are judged apart: all but ``malicious`` is about the honest
    one, unless attacks on images were run with a malicious server alone.

    Args:
        defense: ``name`` and ``parameters`` of the defense.
        model: The model's name.
        data: What reports call the images.
        status: ``broken`` if an attacker read at least one image, else ``not broken``; ``not
            tested`` if no attack that reads images was run, ``not scored`` without the truth.
        by: The worst attacker: attack and kind; None if no image was read.
        tried: All attackers that were run with this server.
        read: Share of the victims' images that the worst attacker read; None: nobody can say.
        server: Whether the worst attacker's server was honest but curious, or malicious.
        labels: Share of labels inferred, if an attack tried that.
        missing: Kinds of attacker that this defense has not met here.
        words: The verdict as a sentence.
        malicious: The verdict on a malicious server; None if no such attack was run.
        acted: Whether the defense acted as it declares, in the worst of the findings; None: there
            is no defense, or nobody checked it.
    """

    defense: dict[str, Any]
    model: str
    data: str
    status: str
    by: str | None
    tried: tuple[str, ...]
    read: float | None
    server: str | None
    labels: float | None
    missing: tuple[str, ...]
    words: str
    malicious: MaliciousVerdict | None = None
    acted: DefenseActed | None = None

    @property
    def by_server(self) -> dict[str, Verdict | MaliciousVerdict]:
        """What was judged: status, attacker and share for an ``honest``, a ``malicious`` server."""
        judged: dict[str, Verdict | MaliciousVerdict] = {}
        if self.malicious is None or not self.malicious.alone:
            judged[HONEST] = self
        if self.malicious is not None:
            judged[MALICIOUS] = self.malicious
        return judged

    @property
    def lines(self) -> tuple[VerdictLine, ...]:
        """The verdict in one line, or in one for each server if a malicious one was tried."""
        if self.malicious is None:
            return (VerdictLine("", self.status, self.words),)
        changed = self.malicious.changed
        if self.malicious.alone:
            return (VerdictLine("malicious server", self.status, self.words, changed),)
        return (
            VerdictLine("honest server", self.status, self.words),
            VerdictLine("malicious server", self.malicious.status, self.malicious.words, changed),
        )

    def to_json(self) -> dict[str, Any]:
        """The verdict as JSON holds it."""
        return {**asdict(replace(self, acted=None)), "acted": acted_to_json(self.acted)}


def judge_findings(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> list[Verdict]:
    """One verdict for each defense on each model and data set, in the findings' order.

    Settings without a finding, because every attack was ``skipped``, come last.
    """
    tested: dict[str, list[Finding]] = {}
    defenses: dict[str, dict[str, Any]] = {}
    for finding in findings:
        key = setting_key(finding.model, finding.data, finding.defense)
        tested.setdefault(key, []).append(finding)
        defenses[spell(finding.defense["name"], finding.defense["parameters"])] = finding.defense
    refused: dict[str, list[Skipped]] = {}
    for each in skipped:
        if each.data:  # older run folders do not say it
            defense = defenses.get(each.defense) or parse_defense(each.defense)
            refused.setdefault(setting_key(each.model, each.data, defense), []).append(each)
    verdicts = [judge_setting(group, refused.get(key, ())) for key, group in tested.items()]
    return verdicts + [judge_untested(group) for key, group in refused.items() if key not in tested]


def setting_key(model: str, data: str, defense: dict[str, Any]) -> str:
    """What tells the setting of one verdict from the others."""
    return json.dumps([model, data, defense], sort_keys=True, default=str)


def parse_defense(text: str) -> dict[str, Any]:
    """Name and parameters; of a user's own defense the whole text is the name."""
    try:
        spec = DEFENSES.parse_builtin(text).spec
    except KeyholeError:
        return {"name": text, "parameters": {}}
    return {"name": spec.name, "parameters": spec.parameters}


def judge_setting(findings: Sequence[Finding], skipped: Sequence[Skipped] = ()) -> Verdict:
    """The verdict on one defense from all that was tried against it."""
    first = findings[0]
    honest = [f for f in findings if f.honest]
    altered = [f for f in findings if not f.honest]
    alone = bool(altered) and not any(f.reads_images for f in honest)
    judged = findings if alone else honest
    outcome = find_outcome(judged, skipped)
    malicious = judge_malicious(altered, skipped, alone=alone) if altered else None
    labels = [f.metrics["labels"].mean for f in judged if "labels" in f.metrics]
    scored = bool(first.recipe.get("scored", True))
    met = {f.attacker for f in judged if "read" in f.metrics or not scored}
    return Verdict(
        defense=first.defense,
        model=first.model,
        data=first.data,
        status=outcome.status,
        by=outcome.by,
        tried=name_attackers(judged),
        read=outcome.read,
        server=None if outcome.worst is None else outcome.worst.knowledge["server"],
        labels=max(labels, default=None),
        missing=()
        if first.defense["name"] == "none"
        else tuple(kind.value for kind in Attacker if kind.value not in met),
        words=f"{malicious.words}; {ALONE}" if malicious and alone else outcome.words,
        malicious=malicious,
        acted=choose_worst([f.acted for f in findings]),
    )


def judge_malicious(
    findings: Sequence[Finding], skipped: Sequence[Skipped], *, alone: bool
) -> MaliciousVerdict:
    """The verdict on a server that changes the model, from the attacks that need one."""
    outcome = find_outcome(findings, skipped)
    changes = findings if outcome.worst is None else [outcome.worst]
    checks = [f.noticed for f in changes]
    noticed = None if None in checks else all(checks)
    return MaliciousVerdict(
        status=outcome.status,
        by=outcome.by,
        read=outcome.read,
        changed="; ".join(dict.fromkeys(str(f.knowledge["altered_model"]) for f in changes)),
        tried=name_attackers(findings),
        words=f"{outcome.words}{describe_notice(noticed)}",
        noticed=noticed,
        alone=alone,
    )


@dataclass(frozen=True)
class Outcome:
    """What attackers with one kind of server reached; ``worst`` read the most images, if any."""

    status: str
    worst: Finding | None
    words: str

    @property
    def by(self) -> str | None:
        return None if self.worst is None else name_attacker(self.worst)

    @property
    def read(self) -> float | None:
        if self.worst is not None:
            return self.worst.metrics["read"].mean
        return 0.0 if self.status == NOT_BROKEN else None


def find_outcome(findings: Sequence[Finding], skipped: Sequence[Skipped]) -> Outcome:
    """The worst of the findings, which have one kind of server."""
    images = [f for f in findings if "read" in f.metrics]
    worst = max(images, key=rank_severity, default=None)
    if not any(f.reads_images for f in findings):
        return Outcome(NOT_TESTED, None, describe_untested(findings, skipped))
    if not findings[0].recipe.get("scored", True):
        return Outcome(NOT_SCORED, None, describe_unscored(findings))
    if worst is not None and worst.metrics["read"].mean:
        return Outcome(BROKEN, worst, describe_broken(worst))
    words = [describe_not_broken(findings, images), quote_map(findings)]
    return Outcome(NOT_BROKEN, None, "; ".join(part for part in words if part))


def judge_untested(skipped: Sequence[Skipped]) -> Verdict:
    """The verdict on a setting in which no attack could be run."""
    first = skipped[0]
    why = "; ".join(dict.fromkeys(f"{s.attack}: {s.why}" for s in skipped))
    return Verdict(
        defense=parse_defense(first.defense),
        model=first.model,
        data=first.data,
        status=NOT_TESTED,
        by=None,
        tried=(),
        read=None,
        server=None,
        labels=None,
        missing=(),
        words=f"not tested: no attack could be used ({why})",
    )


def rank_severity(finding: Finding) -> tuple[float, int, float]:
    """Most images read; then by the attacker who knows the least; then the clearest images."""
    needs = [kind.value for kind in Attacker].index(finding.attacker)
    return finding.metrics["read"].mean, -needs, finding.metrics["ssim"].mean
