"""Compares audits: what each attacker sees more or less of, and which verdicts changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from keyhole.auditing.differences import Difference, compare_metric
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_check import PER_CLIENT
from keyhole.auditing.labels import label_defense
from keyhole.auditing.pairing import pair_clients, pair_findings, pair_images
from keyhole.auditing.results import AuditResult
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import HONEST, MALICIOUS, MaliciousVerdict, Verdict
from keyhole.errors import BadValue

COMPARISON_VERSION = 1
"""``schema_version`` of what ``keyhole compare --json`` prints."""
IGNORED = ("indices", "fingerprint", "gallery", "left_out", "victims")
"""Parts of a recipe whose changes are reported elsewhere, or mean nothing."""


@dataclass(frozen=True)
class FindingPair:
    """One attacker in two runs.

    Args:
        first: The finding of the first run.
        second: The finding of the second run.
        differences: The difference of each metric that both findings have.
        images: The paired images, by their indices in the data set.
        unpaired: Why images are not paired; empty if they are.
        changes: What else differs, one line each: parameters of the attack, and the recipe.
    """

    first: Finding
    second: Finding
    differences: dict[str, Difference]
    images: tuple[int, ...]
    unpaired: str
    changes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON holds it."""
        return {
            **identify_finding(self.first),
            "keys": [self.first.key, self.second.key],
            "paired": not self.unpaired,
            "why_not_paired": self.unpaired or None,
            "images": list(self.images),
            "changes": list(self.changes),
            "metrics": {name: asdict(each) for name, each in self.differences.items()},
        }


@dataclass(frozen=True)
class VerdictPair:
    """The verdict on one defense in two runs.

    Args:
        first: The verdict of the first run; None if it has none.
        second: The verdict of the second run; None if it has none.
    """

    first: Verdict | None
    second: Verdict | None

    @property
    def either(self) -> Verdict:
        """One of the two, for what both have in common."""
        found = self.first or self.second
        assert found is not None
        return found

    @property
    def changed(self) -> bool:
        """Whether both runs judged the defense, with different verdicts on either server."""
        return any(self.changed_for(server) for server in self.servers)

    @property
    def servers(self) -> tuple[str, ...]:
        """The servers that either run judged: ``honest``, ``malicious``."""
        runs = (self.first, self.second)
        judged = {server for verdict in runs if verdict for server in verdict.by_server}
        return tuple(server for server in (HONEST, MALICIOUS) if server in judged)

    @property
    def shared(self) -> bool:
        """Whether both runs judged the defense with the same kind of server."""
        return any(None not in self.judged(server) for server in self.servers)

    def judged(
        self, server: str
    ) -> tuple[Verdict | MaliciousVerdict | None, Verdict | MaliciousVerdict | None]:
        """What each run says about one server; None if it was not tried.

        Args:
            server: ``honest`` or ``malicious``.
        """
        first, second = (v and v.by_server.get(server) for v in (self.first, self.second))
        return first, second

    def changed_for(self, server: str) -> bool:
        """Whether both runs judged the defense with this server, with different verdicts.

        Args:
            server: ``honest`` or ``malicious``.
        """
        first, second = self.judged(server)
        return bool(first and second and first.status != second.status)

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON holds it."""
        first, second = self.first, self.second
        return {
            "model": self.either.model,
            "data": self.either.data,
            "defense": label_defense(self.either.defense),
            "changed": self.changed,
            "first": first and first.status,
            "second": second and second.status,
            "first_read": first and first.read,
            "second_read": second and second.read,
            "first_by": first and first.by,
            "second_by": second and second.by,
            "malicious": self.malicious_to_json() if MALICIOUS in self.servers else None,
        }

    def malicious_to_json(self) -> dict[str, Any]:
        """The verdicts on a malicious server as JSON holds them."""
        first, second = self.judged(MALICIOUS)
        return {
            "changed": self.changed_for(MALICIOUS),
            "first": first and first.status,
            "second": second and second.status,
            "first_read": first and first.read,
            "second_read": second and second.read,
            "first_by": first and first.by,
            "second_by": second and second.by,
        }


@dataclass(frozen=True)
class RunComparison:
    """One run against another.

    Args:
        first: The run that the other is compared with.
        second: The other run.
        findings: Findings that both runs have.
        verdicts: Verdicts that one or both runs have.
        only_first: Findings that only the first run has.
        only_second: Findings that only the second run has.
        notes: What a reader should know, one line each.
    """

    first: AuditResult
    second: AuditResult
    findings: tuple[FindingPair, ...]
    verdicts: tuple[VerdictPair, ...]
    only_first: tuple[Finding, ...]
    only_second: tuple[Finding, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON holds it."""
        return {
            "first": self.first.run,
            "second": self.second.run,
            "verdicts": [v.to_json() for v in self.verdicts],
            "findings": [f.to_json() for f in self.findings],
            "only_in_first": [identify_finding(f) for f in self.only_first],
            "only_in_second": [identify_finding(f) for f in self.only_second],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """Several runs, each compared with the first.

    Args:
        runs: The runs.
        comparisons: One for each run but the first.
    """

    runs: tuple[AuditResult, ...]
    comparisons: tuple[RunComparison, ...]

    def to_json(self) -> dict[str, Any]:
        """What ``keyhole compare --json`` prints."""
        return {
            "schema_version": COMPARISON_VERSION,
            "runs": [describe_run(run) for run in self.runs],
            "comparisons": [each.to_json() for each in self.comparisons],
        }


def compare_results(results: Sequence[AuditResult]) -> Comparison:
    """Compares each audit with the first: attacker by attacker, image by image.

    Findings are paired by model, data, defense, attack and attacker; images by their indices in the
    data set. The attacks, defenses, models and metrics of the runs need not be installed.

    Args:
        results: Two audits or more.

    Raises:
        BadValue: There are fewer than two.
    """
    if len(results) < 2:
        raise BadValue("a comparison needs two runs or more")
    first, *others = results
    return Comparison(tuple(results), tuple(compare_runs(first, other) for other in others))


def compare_runs(first: AuditResult, second: AuditResult) -> RunComparison:
    """One audit against another."""
    stores = first.store, second.store
    pairs, only_first, only_second = pair_findings(first.findings, second.findings)
    compared = tuple(compare_findings(a, b, stores) for a, b in pairs)
    return RunComparison(
        first,
        second,
        compared,
        pair_verdicts(first.verdicts, second.verdicts),
        tuple(only_first),
        tuple(only_second),
        write_notes(first, second, compared),
    )


def compare_findings(
    first: Finding, second: Finding, stores: tuple[Store | None, Store | None]
) -> FindingPair:
    """The differences of every metric that both findings have."""
    images, why = pair_images(first, second, stores)
    differences = {}
    for name in first.metrics:
        if name in second.metrics:
            per_client = images is not None and name in PER_CLIENT
            positions = pair_clients(first, second) if per_client else images
            differences[name] = compare_metric(first, second, name, positions)
    shared = () if images is None else images.images
    return FindingPair(first, second, differences, shared, why, list_changes(first, second))


def pair_verdicts(first: Sequence[Verdict], second: Sequence[Verdict]) -> tuple[VerdictPair, ...]:
    """Pairs verdicts on the same model, data and defense; those of one run alone come last."""

    def index(verdicts: Sequence[Verdict]) -> dict[tuple[str, str, str], Verdict]:
        return {(v.model, v.data, label_defense(v.defense)): v for v in verdicts}

    by_setting, others = index(first), index(second)
    keys = dict.fromkeys([*by_setting, *others])
    return tuple(VerdictPair(by_setting.get(key), others.get(key)) for key in keys)


def list_changes(first: Finding, second: Finding) -> tuple[str, ...]:
    """Parameters of the attack and parts of the recipe that changed: ``iterations: 50 -> 500``."""
    settings = [
        {**{k: v for k, v in f.recipe.items() if k not in IGNORED}, **f.attack_parameters}
        for f in (first, second)
    ]
    return tuple(describe_changes(*settings))


def describe_changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of settings, one line each.

    A setting that one of them does not have counts as switched off there.
    """
    return [
        f"{name}: {first.get(name, 'not said')} -> {second.get(name, 'not said')}"
        for name in dict.fromkeys([*first, *second])
        if simplify(first.get(name)) != simplify(second.get(name))
    ]


def simplify(value: Any) -> Any:
    """A value in the form in which two are compared: tuples as lists, empty values as None."""
    if value is False or value in ("", [], (), {}):
        return None
    return list(value) if isinstance(value, tuple) else value


def write_notes(
    first: AuditResult, second: AuditResult, pairs: Sequence[FindingPair]
) -> tuple[str, ...]:
    """What a reader should know about the whole comparison."""
    notes = []
    if not pairs:
        notes.append("the runs have no finding in common: nothing is compared")
    elif all(pair.unpaired for pair in pairs):
        notes.append(f"no image can be paired, means alone are compared: {pairs[0].unpaired}")
    if first.findings and second.findings:
        versions = (first.findings[0].versions, second.findings[0].versions)
        notes += [f"software: {line}" for line in describe_changes(*versions)]
    return tuple(notes)


def identify_finding(finding: Finding) -> dict[str, str]:
    """What identifies a finding in both runs."""
    return {
        "model": finding.model,
        "data": finding.data,
        "defense": label_defense(finding.defense),
        "attack": finding.attack,
        "attacker": finding.attacker,
    }


def describe_run(run: AuditResult) -> dict[str, Any]:
    """Facts about a whole run."""
    first = run.findings[0] if run.findings else None
    return {
        "run": run.run,
        "title": run.title,
        "findings": len(run.findings),
        "seeds": sorted({int(f.recipe["seed"]) for f in run.findings}),
        "device": first.recipe.get("device", "") if first else "",
        "versions": first.versions if first else {},
    }
