"""Computes what a comparison shows, for the page and for the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from keyhole.auditing.comparison import Comparison, FindingPair, RunComparison, VerdictPair
from keyhole.auditing.differences import MIN_IMAGES, Difference, Leak
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense
from keyhole.auditing.pairing import finding_key, pictures_by_image
from keyhole.auditing.results import AuditResult
from keyhole.auditing.sections import metrics_of
from keyhole.metrics import Metric

SUMMED_UP = "ssim"
"""The metric of the summary sentence; it also decides what counts as read."""
SHOWN = 3
"""Images of a finding that a page shows side by side."""


@dataclass(frozen=True)
class ComparedSection:
    """One model on one data set in two runs."""

    model: str
    data: str
    findings: tuple[FindingPair, ...]
    verdicts: tuple[VerdictPair, ...]

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that any finding has in both runs."""
        shared = {name for pair in self.findings for name in pair.differences}
        found = metrics_of([pair.first for pair in self.findings])
        return [metric for metric in found if metric.name in shared]


def split_comparison(compared: RunComparison) -> list[ComparedSection]:
    """Splits a comparison by model and data set, in the order of the first run."""
    settings = [(p.first.model, p.first.data) for p in compared.findings]
    judged = [(v.either.model, v.either.data) for v in compared.verdicts]
    return [
        ComparedSection(
            model,
            data,
            tuple(p for p in compared.findings if (p.first.model, p.first.data) == (model, data)),
            tuple(v for v in compared.verdicts if (v.either.model, v.either.data) == (model, data)),
        )
        for model, data in dict.fromkeys([*settings, *judged])
    ]


def run_letter(number: int) -> str:
    """Returns what a run is called on the page.

    >>> run_letter(0), run_letter(1), run_letter(26)
    ('A', 'B', 'R27')
    """
    return chr(ord("A") + number) if number < 26 else f"R{number + 1}"


def summarise_comparison(compared: RunComparison) -> str:
    """Says in two sentences how many verdicts changed and how many attackers see more or less."""
    both = [v for v in compared.verdicts if v.shared]
    changed = sum(v.changed for v in both)
    verdicts = pluralise(len(both), "verdict")
    words = f"{changed or 'None'} of {verdicts} changed." if both else "No verdict is in both runs."
    leaks = Counter(
        p.differences[SUMMED_UP].leak for p in compared.findings if SUMMED_UP in p.differences
    )
    if not leaks:
        return words
    parts = [f"{leaks[kind]} {phrase}" for kind, phrase in PHRASES.items() if leaks[kind]]
    attackers = pluralise(sum(leaks.values()), "attacker")
    return f"{words} Of {attackers} in both runs, by SSIM: {', '.join(parts)}."


PHRASES = {
    Leak.MORE: "more is seen",
    Leak.LESS: "less is seen",
    Leak.SAME: "exactly the same",
    Leak.UNCLEAR: "no clear difference",
}


def pluralise(number: int, noun: str) -> str:
    """Returns a number with its noun.

    >>> pluralise(1, "verdict"), pluralise(3, "verdict")
    ('1 verdict', '3 verdicts')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_change(metric: Metric, value: float) -> str:
    """Formats a difference with its sign; shares in percentage points.

    >>> from keyhole.metrics import METRICS
    >>> format_change(METRICS["psnr"], 1.26), format_change(METRICS["read"], -0.25)
    ('+1.3', '−25 pp')
    """
    size = f"{100 * abs(value):.0f} pp" if metric.percent else metric.format(abs(value))
    sign = "" if value == 0 else "+" if value > 0 else "−"
    return f"{sign}{size}"


def format_interval(metric: Metric, found: Difference) -> str:
    """Formats the 95% interval of a difference; empty if all images agree.

    >>> from keyhole.metrics import METRICS
    >>> found = Difference(1, 2, 1, -0.5, 2.5, 6, Leak.UNCLEAR, ())
    >>> format_interval(METRICS["psnr"], found)
    '[−0.5, +2.5]'
    """
    low, high = format_change(metric, found.low), format_change(metric, found.high)
    return "" if low == high else f"[{low}, {high}]"


def label_pair(pair: FindingPair) -> str:
    """Returns the attack of a pair; with its parameters if they are the same in both runs."""
    labels = {label_attack(f) for f in (pair.first, pair.second)}
    return labels.pop() if len(labels) == 1 else pair.first.attack


def describe_finding(finding: Finding) -> str:
    """Describes a finding that only one run has, in one line."""
    defense = label_defense(finding.defense)
    who = f"{label_attack(finding)} ({finding.attacker})"
    return f"{finding.model} on {finding.data}, {defense}: {who}"


def explain_pairs(pairs: Sequence[FindingPair]) -> list[str]:
    """Lists which settings differ, and which images are compared if not all of them are."""
    changes = dict.fromkeys(line for pair in pairs for line in pair.changes)
    lines = [f"settings that differ: {'; '.join(changes)}"] if changes else []
    for pair in pairs:
        if pair.unpaired:
            lines.append(f"means alone are compared: {pair.unpaired}")
            continue
        counts = [f.victims * int(f.recipe["batch_size"]) for f in (pair.first, pair.second)]
        if len(pair.images) < max(counts):
            lines.append(
                f"{pluralise(len(pair.images), 'image')} of {counts[0]} and {counts[1]} are in "
                "both runs; only these are compared"
            )
        if len(pair.images) < MIN_IMAGES:
            lines.append(f"with fewer than {MIN_IMAGES} images no difference is called clear")
    return list(dict.fromkeys(lines))


@dataclass(frozen=True)
class SideBySide:
    """One image as the attackers of several runs saw it; None where a run has no picture of it."""

    original: Tensor | None
    seen: tuple[Tensor | None, ...]


def find_side_by_side(comparison: Comparison, finding: Finding) -> list[SideBySide]:
    """Finds some images that at least two runs have pictures of, uint8 ``[C, H, W]`` each."""
    found = [find_same(comparison, run, finding) for run in comparison.runs]
    seen = [
        {} if f is None else pictures_by_image(f, run.store, "seen")
        for f, run in zip(found, comparison.runs, strict=True)
    ]
    truth = pictures_by_image(finding, comparison.runs[0].store, "truth")
    shared = [image for image in seen[0] if any(image in other for other in seen[1:])]
    return [
        SideBySide(truth.get(image), tuple(each.get(image) for each in seen))
        for image in shared[:SHOWN]
    ]


def label_across(comparison: Comparison, finding: Finding) -> str:
    """Returns the attack of a finding; with its parameters if they are the same in every run."""
    found = [find_same(comparison, run, finding) for run in comparison.runs]
    labels = {label_attack(f) for f in found if f is not None}
    return labels.pop() if len(labels) == 1 else finding.attack


def find_same(comparison: Comparison, run: AuditResult, finding: Finding) -> Finding | None:
    """Finds the finding of a run that is paired, image by image, with one of the first run."""
    if run is comparison.runs[0]:
        return finding
    for compared in comparison.comparisons:
        if compared.second is run:
            for pair in compared.findings:
                if pair.first is finding and not pair.unpaired:
                    return pair.second
    return None


def find_shared(comparison: Comparison) -> list[Finding]:
    """Returns the first run's findings that are in any other run, each once."""
    keys = {
        finding_key(pair.first): None
        for compared in comparison.comparisons
        for pair in compared.findings
    }
    return [f for f in comparison.runs[0].findings if finding_key(f) in keys]
