"""Experiments that are audits: one stage, its attacks, and what the paper reports of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keyhole.auditing import AuditResult, Finding, Plan, Stage, run_plan
from keyhole.spelling import parse_call
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.comparisons import Comparison, Scale
from keyhole_studies.coverage import attack_gap, count_gap, settings_gap

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

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Fewer images or iterations than asked for, other settings, or an attack without a row."""
        stage = self.stage.model_copy(update={k: v for k, v in context.changes.items() if v})
        now = {"batch_size": stage.batch_size, "repeats": stage.repeats}
        gap = settings_gap(known.get("stage", {}), now, "clients")
        gap = gap or settings_gap(known.get("setting", {}), describe_setting(stage))
        gap = gap or count_gap(known["images"], stage.victims * stage.batch_size, "images")
        for text in self.list_attacks(known):
            row = find_attack(known, text)
            gap = gap or attack_gap(text, row, stage.iterations)
        return gap

    def list_attacks(self, known: dict[str, Any]) -> Sequence[str]:
        """The attacks that a whole result has rows of; all, by default.

        Args:
            known: The result.
        """
        return self.stage.attacks

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """SSIM and PSNR by the attacks that the paper has figures of."""
        scales: tuple[Scale, Scale] = ("ssim", "psnr")
        for attack, figures in self.paper.items():
            row = known["rows"].get(attack)
            for scale in scales:
                if row is not None and scale in figures:
                    mean = row["metrics"][scale]["mean"]
                    yield Comparison(attack, scale, mean, figures[scale])

    def tell(self, known: dict[str, Any]) -> str:
        """Mean PSNR by attack."""
        means = {name: row["metrics"]["psnr"]["mean"] for name, row in known["rows"].items()}
        return ", ".join(f"{name} {mean:.1f} dB" for name, mean in means.items())

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
        "setting": describe_setting(experiment.stage),
        "device": first.recipe["device"],
        "versions": first.versions,
        "rows": make_rows(result.findings),
    }


def describe_setting(stage: Stage) -> dict[str, Any]:
    """What is attacked, as a cell writes it: a result of another setting is stale."""
    fields = ("model", "data", "client_mode", "steps", "lr")
    return {"defense": stage.defenses[0], **{field: getattr(stage, field) for field in fields}}


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


def name_row(text: str) -> str:
    """The name that a result's row has of an attack as a cell writes it.

    >>> name_row("dia(tv=1e-6, masks='read')"), name_row("ig(iterations=400)")
    ('dia-read', 'ig')
    """
    attack, parameters = parse_call(text)
    return attack + (READS_MASKS if parameters.get("masks") == "read" else "")


def find_attack(result: Mapping[str, Any], text: str) -> dict[str, Any] | None:
    """The first row of an attack as a cell writes it, by whichever attacker."""
    attack, named = parse_call(text)[0], name_row(text)
    rows: Mapping[str, dict[str, Any]] = result["rows"]
    of_attack = [name for name in rows if attack_of_row(name) == attack]
    of_attack.sort(key=lambda name: name.partition(" (")[0] != named)
    return rows[of_attack[0]] if of_attack else None


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
