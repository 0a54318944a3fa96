"""Audits one setting at one moment of its training: with its first weights, or with its last."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from keyhole.auditing.attack_setting import AttackSetting, build_settings
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_builder import compute_key
from keyhole.auditing.plan import Plan, Stage
from keyhole.auditing.resolve import ResolvedStage, resolve_stage
from keyhole.auditing.results import AuditResult
from keyhole.auditing.run import RunContext, run_settings
from keyhole.auditing.store import Store
from keyhole.auditing.verdict import judge_findings
from keyhole.data import load
from keyhole.defenses import DEFENSES
from keyhole.frontier.attackers import choose_attacks, split_by_cost
from keyhole.frontier.plan import FrontierPlan
from keyhole.progress import Progress
from keyhole.settings import make_settings


def audit_moment(
    plan: FrontierPlan,
    defense: str,
    seed: int,
    *,
    weights: Path | None,
    out: Path,
    data_dir: str | None,
    device: torch.device,
    progress: Progress,
) -> AuditResult:
    """Attacks clients who hold these weights; the same call continues where it was stopped.

    Iterative attacks run only if the closed forms left an image unread: the worst share is known
    otherwise. The run folder opens with ``keyhole report``.
    """
    stage = build_stage(plan, defense, weights)
    resolved = resolve(plan, stage, seed, data_dir=data_dir, device=device)
    store = Store.open(out, Plan(title=f"Frontier: {defense}", seed=seed, stage=(stage,)).to_json())
    context = RunContext(store, progress)
    try:
        findings, date = list[Finding](), ""
        settings = build_settings(resolved)
        parts = list(zip(*map(split_by_cost, settings), strict=True))
        for part in parts:
            if not reads_everything(findings):
                found = run_settings(part, context, data_dir=data_dir)
                findings, date = [*findings, *found.findings], found.date
        return write_whole(settings, findings, store, date)
    finally:
        store.release()


def build_stage(plan: FrontierPlan, defense: str, weights: Path | None) -> Stage:
    """Attacked clients who train like those of the training, on fewer images."""
    return make_settings(
        Stage,
        {
            "model": plan.model,
            "data": plan.data,
            "defenses": (defense,),
            "victims": plan.victims,
            "batch_size": plan.victim_images,
            "steps": plan.victim_steps,
            "lr": plan.lr,
            "image_size": plan.image_size,
            "mean": plan.mean,
            "std": plan.std,
            "weights": weights,
            "client_mode": None if plan.client_mode == "train" else plan.client_mode,
            "iterations": plan.iterations,
            "checkpoint_epoch": 0 if weights == plan.weights else plan.rounds * plan.epochs,
        },
    )


def resolve(
    plan: FrontierPlan, stage: Stage, seed: int, *, data_dir: str | None, device: torch.device
) -> ResolvedStage:
    """The stage with the attacks that a frontier runs against its defense."""
    images = load(stage.data, image_size=stage.image_size, data_dir=data_dir)
    defense = DEFENSES.parse(stage.defenses[0])
    return resolve_stage(
        stage,
        seed=seed,
        data_dir=data_dir,
        device=device,
        defenses=[defense],
        attacks=choose_attacks(defense, images.shape, plan.attacks),
    )


def reads_everything(findings: Sequence[Finding]) -> bool:
    """Whether one attacker has read every image already."""
    return any(f.metrics["read"].mean == 1 for f in findings if "read" in f.metrics)


def write_whole(
    settings: Sequence[AttackSetting], findings: Sequence[Finding], store: Store, date: str
) -> AuditResult:
    """The result of all parts of the audit, in its run folder as one audit leaves it."""
    found = {finding.key: finding for finding in findings}
    keys = [compute_key(setting, run) for setting in settings for run in setting.runs]
    ordered = tuple(found[key] for key in keys if key in found)
    skipped = tuple(each for setting in settings for each in setting.skipped)
    verdicts = tuple(judge_findings(ordered, skipped))
    result = AuditResult(ordered, verdicts, skipped, store, date=date)
    store.write_order([finding.key for finding in ordered])
    store.write_summary(result.to_json())
    return result
