"""Experiments that are audits: one stage, its attacks, and what the paper reports of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.auditing import AuditResult, Finding, Plan, Stage, run_plan
from keyhole_studies.base import Experiment, Study, StudyContext

STAGE_FIELDS = ("batch_size", "victims", "seed", "image_size", "repeats")
"""What a result says of how its clients trained."""
METRICS = ("ssim", "psnr", "mse", "lpips", "fft2d", "mmd", "mask", "reid", "read")
"""Metrics of an attack that a result holds."""
READS_MASKS = "-read"
"""Ends the row names of attacks that read dropout masks off the update."""


@dataclass(frozen=True)
class AuditExperiment(Experiment):
    """One stage of an audit.

    Args:
        stage: Model, data, defense and attacks.
        paper: The paper's figures, ``{attack: {metric: value}}``.
    """

    stage: Stage

    def make_plan(self, study: Study, context: StudyContext) -> Plan:
        """The stage with the context's changes, as a plan of its own."""
        title = f"{study.title}: {self.name}"
        return Plan(title=title, seed=study.seed, stage=(self.stage,)).with_all(**context.changes)

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        result = run_plan(
            self.make_plan(study, context),
            out=context.runs / self.name,
            data_dir=context.data_dir,
            device=context.device,
            progress=context.progress,
            victims_at_once=context.victims_at_once,
        )
        return condense(self, result)

    def covers(self, known: dict[str, Any], context: StudyContext) -> bool:
        """A result over fewer images than asked for does not count."""
        stage = self.stage.model_copy(update={k: v for k, v in context.changes.items() if v})
        return bool(known["images"] >= stage.victims * stage.batch_size)

    def describe(self) -> dict[str, Any]:
        return {
            "model": self.stage.model,
            "data": self.stage.data,
            "defense": self.stage.defenses[0],
            "attacks": list(self.stage.attacks),
            "clients": self.stage.victims,
            "batch_size": self.stage.batch_size,
        }


def condense(experiment: AuditExperiment, result: AuditResult) -> dict[str, Any]:
    """An audit's result without what can be computed from it."""
    first = result.findings[0]
    return {
        "piece": experiment.name,
        "images": first.victims * experiment.stage.batch_size,
        "stage": {field: first.recipe[field] for field in STAGE_FIELDS},
        "device": first.recipe["device"],
        "versions": first.versions,
        "rows": make_rows(result.findings),
    }


def make_rows(findings: Sequence[Finding]) -> dict[str, dict[str, Any]]:
    """Findings by attack; a second attacker with the same attack is named beside it."""
    rows: dict[str, dict[str, Any]] = {}
    for finding in findings:
        reads = finding.attack_parameters.get("masks") == "read"
        name = finding.attack + (READS_MASKS if reads else "")
        rows[f"{name} ({finding.attacker})" if name in rows else name] = make_row(finding)
    return rows


def attack_of_row(name: str) -> str:
    """The attack in the name of a result's row: the inverse of :func:`make_rows`.

    >>> attack_of_row("ig (adaptive)"), attack_of_row("dia-read")
    ('ig', 'dia')
    """
    return name.partition(" (")[0].removesuffix(READS_MASKS)


def find_row(result: Mapping[str, Any], attack: str, *, adaptive: bool) -> dict[str, Any] | None:
    """The row of an attack by an attacker who knows the defense, or by one who does not."""
    for name, row in result["rows"].items():
        if attack_of_row(name) == attack and (row["attacker"] == "adaptive") == adaptive:
            found: dict[str, Any] = row
            return found
    return None


def make_row(finding: Finding) -> dict[str, Any]:
    return {
        "attacker": finding.attacker,
        "parameters": finding.attack_parameters,
        "seconds": round(finding.seconds, 2),
        "iterations": finding.diagnostics.get("iterations"),
        "loss": finding.diagnostics.get("loss"),
        "notes": list(finding.notes),
        "metrics": {
            name: {
                "mean": round(summary.mean, 5),
                "low": round(summary.low, 5),
                "high": round(summary.high, 5),
                "per_image": [round(value, 4) for value in summary.per_image],
            }
            for name, summary in finding.metrics.items()
            if name in METRICS
        },
    }
