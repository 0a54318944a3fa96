"""From what was measured in a setting to its findings, their keys and their recipes."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import torch

from keyhole.attacks import Attack
from keyhole.auditing.accumulator import SettingAccumulator
from keyhole.auditing.attack_setting import AttackRun, AttackSetting
from keyhole.auditing.defense_acted import summarise_checks
from keyhole.auditing.finding import Finding, build_key, read_versions
from keyhole.auditing.incoming import check_incoming
from keyhole.auditing.scoring import AnyJudge
from keyhole.metrics import METRICS, summarise
from keyhole.parameters import make_recordable, read_parameters
from keyhole.registry import part_name


def build_finding(
    setting: AttackSetting, number: int, totals: SettingAccumulator, judge: AnyJudge
) -> Finding:
    """The finding of the setting's attacker of this number, from all that was measured."""
    resolved, run, measured = setting.resolved, setting.runs[number], totals.runs[number]
    described = {**METRICS, **{metric.name: metric.description for metric in resolved.metrics}}
    summaries = {
        name: summarise(values, worst_is_high=described[name].leaks_high, seed=resolved.seed)
        for name, values in measured.scores.items()
    }
    reads_images = "read" in summaries
    spec = setting.defense.spec
    return Finding(
        key=compute_key(setting, run),
        model=resolved.stage.model,
        data=resolved.label or resolved.stage.data,
        defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
        attacker=run.attacker.value,
        attack=part_name(run.attack),
        attack_parameters=make_recordable(read_parameters(run.attack)),
        knowledge=setting.build_knowledge(run, resolved.data.labels[:1]).summary(),
        victims=len(resolved.victims),
        seconds=measured.seconds,
        metrics={name: summaries[name] for name in described if name in summaries},
        unavailable=judge.unavailable if reads_images else {},
        baselines=judge.baselines() if reads_images else {},
        confidence=tuple(measured.confidence),
        diagnostics={k: fmean(v) for k, v in measured.diagnostics.items()},
        loss_curves=tuple(tuple(curve) for curve in measured.loss_curves),
        notes=(*setting.notes, *measured.notes),
        telemetry=totals.mean_telemetry(),
        recipe=describe_recipe(setting),
        versions=read_versions(),
        reads_images=run.attack.reads_images,
        attack_label=run.attack.label,
        custom_metrics={name: described[name] for name in summaries if name not in METRICS},
        noticed=would_be_noticed(setting, run.attack),
        acted=summarise_checks(totals.checks),
    )


def would_be_noticed(setting: AttackSetting, attack: Attack) -> bool | None:
    """Whether a client that knows only its own code would notice that the model was altered.

    None where the server is honest, or where the clients are captured ones.
    """
    resolved = setting.resolved
    if attack.altered_model is None or setting.captured is not None:
        return None
    honest = resolved.prepare_model(setting.defense)
    last = resolved.stage.aggregate - 1  # of a group, one that is not the first
    sent = attack.personalise(setting.model, last, resolved.build_public_knowledge())
    return check_incoming(honest, sent.state_dict(), shape=resolved.data.shape).suspicious


def describe_recipe(setting: AttackSetting) -> dict[str, Any]:
    """What is needed to repeat a setting, besides its names."""
    resolved = setting.resolved
    device = next(setting.model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **resolved.stage.model_dump(mode="json", exclude={"defenses", "attacks", "model", "data"}),
        "batch_size": resolved.stage.images_per_update,
        "image_size": list(resolved.data.size),
        "mean": list(resolved.data.mean),
        "std": list(resolved.data.std),
        "assumed_normalisation": resolved.assumed_normalisation,
        "seed": resolved.seed,
        "fingerprint": resolved.fingerprint,
        "indices": [list(batch) for batch in resolved.victims],
        "gallery": len(resolved.victims) * resolved.stage.images_per_update + len(resolved.public),
        "scored": resolved.scored,
        "left_out": list(setting.left_out),
        "clients_did": resolved.clients_did,
        "orders": resolved.orders,
        "device": name,
    }


def compute_key(setting: AttackSetting, run: AttackRun) -> str:
    """The name of a finding's files, which no other finding has."""
    identity = {**_identify(setting), "rows": None}
    return build_key({**identity, "attack": str(run.attack), "attacker": run.attacker})


def compute_setting_name(setting: AttackSetting) -> str:
    """The name that the files of an unfinished setting start with."""
    rows = [f"{run.attack} {run.attacker}" for run in setting.runs]
    return build_key({**_identify(setting), "rows": rows}).rsplit("-", 1)[-1]


def _identify(setting: AttackSetting) -> dict[str, Any]:
    """What tells a setting from all others. A run folder continues only if it stays the same."""
    resolved = setting.resolved
    return {
        **resolved.stage.model_dump(mode="json", exclude={"defenses", "attacks"}),
        "defense": str(setting.defense),
        "seed": resolved.seed,
        "fingerprint": resolved.fingerprint,
        "altered": next((run.attack.altered_model for run in setting.runs), None),
    }
