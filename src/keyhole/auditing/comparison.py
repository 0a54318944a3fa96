"""Audits compared: what each attacker sees more or less of, and which verdicts changed."""

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
from keyhole.auditing.verdict import Verdict
from keyhole.errors import BadValue

COMPARISON_VERSION = 1
"""``schema_version`` of what ``keyhole compare --json`` prints."""
UNREMARKABLE = ("indices", "fingerprint", "gallery", "left_out", "victims")
"""Parts of a recipe whose changes are said elsewhere, or say nothing."""


@dataclass(frozen=True)
class FindingPair:
    """One attacker in two runs."""

    first: Finding
    second: Finding
    differences: dict[str, Difference]
    images: tuple[int, ...]
    """The images that are paired, by their indices in the data set."""
    unpaired: str
    """Why images are not paired; empty where they are."""
    changes: tuple[str, ...]
    """What else differs: parameters of the attack, and the recipe."""

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON holds it."""
        return {
            **name_finding(self.first),
            "keys": [self.first.key, self.second.key],
            "paired": not self.unpaired,
            "why_not_paired": self.unpaired or None,
            "images": list(self.images),
            "changes": list(self.changes),
            "metrics": {name: asdict(each) for name, each in self.differences.items()},
        }


@dataclass(frozen=True)
class VerdictPair:
    """The verdict on one defense in two runs; None where a run does not have it."""

    first: Verdict | None
    second: Verdict | None

    @property
    def either(self) -> Verdict:
        """One of the two, for what they have in common."""
        found = self.first or self.second
        assert found is not None
        return found

    @property
    def changed(self) -> bool:
        """Whether both runs judged the defense, and not alike."""
        return bool(self.first and self.second and self.first.status != self.second.status)

    def to_json(self) -> dict[str, Any]:
        """The pair as JSON holds it."""
        both = (self.first, self.second)
        return {
            "model": self.either.model,
            "data": self.either.data,
            "defense": label_defense(self.either.defense),
            "changed": self.changed,
            **dict(zip(("first", "second"), (v and v.status for v in both), strict=True)),
            **dict(zip(("first_read", "second_read"), (v and v.read for v in both), strict=True)),
            **dict(zip(("first_by", "second_by"), (v and v.by for v in both), strict=True)),
        }


@dataclass(frozen=True)
class RunComparison:
    """One run against another."""

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
            "only_in_first": [name_finding(f) for f in self.only_first],
            "only_in_second": [name_finding(f) for f in self.only_second],
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class Comparison:
    """Several runs, each compared with the first."""

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
    data set. Nothing that made the runs need be installed.

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
    found = tuple(compare_findings(a, b, stores) for a, b in pairs)
    return RunComparison(
        first,
        second,
        found,
        pair_verdicts(first.verdicts, second.verdicts),
        tuple(only_first),
        tuple(only_second),
        notes_on(first, second, found),
    )


def compare_findings(
    first: Finding, second: Finding, stores: tuple[Store | None, Store | None] = (None, None)
) -> FindingPair:
    """The differences of every metric that both findings have."""
    images, why = pair_images(first, second, stores)
    differences = {}
    for name in first.metrics:
        if name in second.metrics:
            per_client = images is not None and name in PER_CLIENT
            places = pair_clients(first, second) if per_client else images
            differences[name] = compare_metric(first, second, name, places)
    shared = () if images is None else images.images
    return FindingPair(first, second, differences, shared, why, changes_between(first, second))


def pair_verdicts(first: Sequence[Verdict], second: Sequence[Verdict]) -> tuple[VerdictPair, ...]:
    """Verdicts on the same model, data and defense; those of one run alone come last."""
    mine, theirs = ({verdict_key(v): v for v in each} for each in (first, second))
    keys = dict.fromkeys([*mine, *theirs])
    return tuple(VerdictPair(mine.get(key), theirs.get(key)) for key in keys)


def verdict_key(verdict: Verdict) -> tuple[str, str, str]:
    """What a verdict is on."""
    return verdict.model, verdict.data, label_defense(verdict.defense)


def changes_between(first: Finding, second: Finding) -> tuple[str, ...]:
    """Parameters of the attack and parts of the recipe that differ: ``iterations: 50 -> 500``."""
    settings = [
        {**{k: v for k, v in f.recipe.items() if k not in UNREMARKABLE}, **f.attack_parameters}
        for f in (first, second)
    ]
    return tuple(differing(settings[0], settings[1]))


def differing(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of settings, one line each.

    A setting that one of them does not know counts as switched off there.
    """
    return [
        f"{name}: {first.get(name, 'not said')} -> {second.get(name, 'not said')}"
        for name in dict.fromkeys([*first, *second])
        if as_json(first.get(name)) != as_json(second.get(name))
    ]


def as_json(value: Any) -> Any:
    """A tuple as the list that JSON makes of it; nothing, in whatever form, as None."""
    if value is False or value in ("", [], (), {}):
        return None
    return list(value) if isinstance(value, tuple) else value


def notes_on(
    first: AuditResult, second: AuditResult, found: Sequence[FindingPair]
) -> tuple[str, ...]:
    """What a reader should know of the whole comparison."""
    notes = []
    if not found:
        notes.append("the runs have no finding in common: nothing is compared")
    elif all(pair.unpaired for pair in found):
        notes.append(f"no image can be paired, means alone are compared: {found[0].unpaired}")
    if first.findings and second.findings:
        versions = (first.findings[0].versions, second.findings[0].versions)
        notes += [f"software: {line}" for line in differing(*versions)]
    return tuple(notes)


def name_finding(finding: Finding) -> dict[str, str]:
    """What a finding is called in both runs."""
    return {
        "model": finding.model,
        "data": finding.data,
        "defense": label_defense(finding.defense),
        "attack": finding.attack,
        "attacker": finding.attacker,
    }


def describe_run(run: AuditResult) -> dict[str, Any]:
    """What is to be known of a whole run."""
    first = run.findings[0] if run.findings else None
    return {
        "run": run.run,
        "title": run.title,
        "findings": len(run.findings),
        "seeds": sorted({int(f.recipe["seed"]) for f in run.findings}),
        "device": first.recipe.get("device", "") if first else "",
        "versions": first.versions if first else {},
    }
