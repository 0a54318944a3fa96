"""A result divided by model and data set, as tables and pages show it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.auditing.finding import Finding
from keyhole.auditing.verdict import Verdict
from keyhole.metrics import METRICS, Metric

SECONDARY = ("mse", "fft2d", "mmd", "mask", "labels")
"""Metrics that only full tables show: pages and files, not terminals and papers."""


@dataclass(frozen=True)
class Section:
    """One model on one data set: its findings and verdicts, in the order of the audit."""

    model: str
    data: str
    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def metrics(self) -> list[Metric]:
        """The metrics that any finding of this section has, Keyhole's own first."""
        return metrics_of(self.findings)

    @property
    def main_metrics(self) -> list[Metric]:
        """The metrics for narrow tables, and all that users added."""
        return [metric for metric in self.metrics if metric.name not in SECONDARY]

    @property
    def baselines(self) -> dict[str, dict[str, float]]:
        """Mean scores of attackers who saw nothing."""
        return next((f.baselines for f in self.findings if f.baselines), {})

    @property
    def facts(self) -> str:
        """Who was attacked, in one line."""
        if not self.findings:
            return "no attack could be used"
        recipe = self.findings[0].recipe
        counts = sorted({f.victims for f in self.findings})
        clients = " and ".join(str(n) for n in counts)
        together = int(recipe.get("aggregate", 1))
        batch = int(recipe["batch_size"]) // together
        images = "one image" if batch == 1 else f"{batch} images"
        size = "x".join(str(n) for n in recipe["image_size"])
        start = "given weights" if recipe["weights"] else f"random weights (seed {recipe['seed']})"
        if recipe.get("captured"):
            start = f"captured weights of round {recipe['rounds']}"
        shared = describe_shared(recipe)
        if together > 1:
            sums = f"{clients} secure sum{'' if counts == [1] else 's'} of {together} clients"
            return f"{sums} of {images} each, {size} px; {start}; each client shares {shared}"
        if counts == [1]:
            return f"one client of {images}, {size} px; {start}; it shares {shared}"
        return f"{clients} clients of {images} each, {size} px; {start}; each shares {shared}"


def split_into_sections(
    findings: Sequence[Finding], verdicts: Sequence[Verdict]
) -> tuple[Section, ...]:
    """One section for each model and data set, in the order of the audit."""
    found = [(f.model, f.data) for f in findings]
    order = dict.fromkeys([*found, *((v.model, v.data) for v in verdicts)])
    return tuple(
        Section(
            model,
            data,
            tuple(f for f in findings if (f.model, f.data) == (model, data)),
            tuple(v for v in verdicts if (v.model, v.data) == (model, data)),
        )
        for model, data in order
    )


def metrics_of(findings: Sequence[Finding]) -> list[Metric]:
    """The metrics that any of the findings has: Keyhole's own in their usual order, then others."""
    present = {name: f.describe_metric(name) for f in findings for name in f.metrics}
    order = dict.fromkeys([*(name for name in METRICS if name in present), *present])
    return [present[name] for name in order]


def describe_shared(recipe: Mapping[str, Any]) -> str:
    """What clients did and sent; older run folders also say what attacks assume of it."""
    if recipe["lr"] is None:
        return "the gradient of one step"
    steps = "1 step" if recipe["steps"] == 1 else f"{recipe['steps']} steps"
    assumed = f"{steps} of sgd, lr {recipe['lr']:g}"
    did = recipe.get("clients_did")
    if not did:
        return f"weights after {assumed}"
    if "orders" in recipe or did.startswith(f"{assumed} ("):
        return f"weights after {did}"
    return f"weights after {did}; attacks take that for {assumed}"
