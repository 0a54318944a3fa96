"""Playing the settings: clients train, the server observes, attackers attack, the judge scores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from keyhole.attacks import Checkpointer, Reconstruction
from keyhole.auditing.accumulator import RunAccumulator, SettingAccumulator
from keyhole.auditing.attack_setting import AttackRun, AttackSetting
from keyhole.auditing.client_normalisation import attack_by_best_fit
from keyhole.auditing.explanations import explained, sheet
from keyhole.auditing.finding import Finding, key_of, versions
from keyhole.auditing.recording_defense import RecordingDefense
from keyhole.auditing.resolve import ResolvedStage
from keyhole.auditing.results import AuditResult
from keyhole.auditing.scoring import Judge, UnscoredJudge
from keyhole.auditing.store import Store
from keyhole.auditing.store_checkpointer import StoreCheckpointer
from keyhole.auditing.verdict import verdicts
from keyhole.data import Normalisation
from keyhole.defenses import NoDefense
from keyhole.defenses.base import Memory
from keyhole.federation import defended_update
from keyhole.metrics import METRICS, summarise
from keyhole.models.dropout_sites import MaskRecorder
from keyhole.parameters import make_recordable, read_parameters
from keyhole.progress import Progress
from keyhole.registry import part_name
from keyhole.seeds import generator
from keyhole.threat import Observation
from keyhole.update import Update

UPDATES_IN_MEMORY = 1 << 30
"""Bytes of updates held at once; more victims are attacked in several chunks."""

VICTIMS_AT_ONCE = 32
VICTIMS_AT_ONCE_ON_GPU = 128


def run_settings(
    settings: Sequence[AttackSetting],
    *,
    store: Store | None,
    progress: Progress,
    data_dir: str | None = None,
    victims_at_once: int | None = None,
    notes: Sequence[str] = (),
) -> AuditResult:
    """Plays every setting that the store does not know yet, and judges."""
    progress.begin(sum(len(s.resolved.victims) * (1 + len(s.rows)) for s in settings if s.rows))
    if store is not None:
        store.keep_order([key(setting, row) for setting in settings for row in setting.rows])
    judge: Judge | UnscoredJudge | None = None
    judged_stage: ResolvedStage | None = (
        None  # settings of one cast follow each other and share a judge
    )
    findings: list[Finding] = []
    with full_precision():
        for setting in settings:
            if not setting.rows:
                continue
            units = len(setting.resolved.victims) * (1 + len(setting.rows))
            known = [store.finding(key(setting, row)) for row in setting.rows] if store else [None]
            if store is not None and all(known):
                store.drop_begun(name_of(setting))
                findings += [f for f in known if f is not None]
                progress.advance(units)
                continue
            if judge is None or judged_stage is not setting.resolved:
                judge = (
                    Judge(setting.resolved, data_dir)
                    if setting.resolved.scored
                    else UnscoredJudge(setting.resolved)
                )
                judged_stage = setting.resolved
            context = RunContext(store, progress, victims_at_once)
            findings += run_setting(setting.opened(), judge, context)
    skipped = tuple(s for setting in settings for s in setting.skipped)
    judged = tuple(verdicts(findings, skipped))
    result = AuditResult(tuple(findings), judged, skipped, store, tuple(notes))
    if store is not None:
        store.write_json("summary.json", result.to_json())
    return result


@dataclass(frozen=True)
class RunContext:
    """Where a run keeps things, who watches it, and how many victims it takes at once."""

    store: Store | None
    progress: Progress
    victims_at_once: int | None = None


def run_setting(
    setting: AttackSetting, judge: Judge | UnscoredJudge, context: RunContext
) -> list[Finding]:
    """All findings of one setting; finished chunks of an interrupted run are taken up."""
    store, progress = context.store, context.progress
    name = name_of(setting)
    victims = range(len(setting.resolved.victims))
    totals = SettingAccumulator.empty(len(setting.rows))
    for start in victims[:: chunk_size(setting.model)]:
        chunk = victims[start : start + chunk_size(setting.model)]
        known = store.chunk(f"{name}-{start}") if store else None
        if known is not None:
            part = SettingAccumulator.from_json(*known)
            progress.advance(len(chunk) * (1 + len(setting.rows)))
        else:
            part = run_chunk(setting, judge, chunk, context, name)
            if store is not None and len(chunk) < len(victims):
                store.add_chunk(f"{name}-{start}", part.to_json(), part.pictures)
        totals.extend(part)
    findings = []
    for number, row in enumerate(setting.rows):
        finding = conclude(setting, row, totals.rows[number], totals, judge)
        if store is not None:
            store.add(finding, pictures_of(totals, number))
        findings.append(finding)
    if store is not None:
        store.drop_begun(name)
    return findings


def run_chunk(
    setting: AttackSetting,
    judge: Judge | UnscoredJudge,
    chunk: range,
    context: RunContext,
    name: str = "setting",
) -> SettingAccumulator:
    """Some of a setting's clients: each trains once, then every attacker attacks them all."""
    progress = context.progress
    totals = SettingAccumulator.empty(len(setting.rows))
    clients: list[Client] = []
    doing = "clients train" if setting.captured is None else "updates are read"
    progress.show(f"{doing} under {setting.defense.name}, {setting.resolved.stage.model}")
    for victim in chunk:
        started = time.perf_counter()
        clients.append(observe(setting, victim, totals))
        totals.client_seconds += time.perf_counter() - started
        progress.advance(1)
    totals.pictures.update(explained(setting, chunk, [c.observation.update for c in clients]))
    for number, row in enumerate(setting.rows):
        who = f"{row.attack.name} ({row.attacker})"
        progress.show(f"{who} against {setting.defense.name}, {setting.resolved.stage.model}")
        labels = [setting.resolved.data.labels[list(setting.resolved.victims[v])] for v in chunk]
        told = [
            replace(c.observation, knowledge=setting.knowledge(row, y, c.masks, c.passed))
            for c, y in zip(clients, labels, strict=True)
        ]
        state = context.store.state(f"{name}-{chunk.start}-{number}") if context.store else None
        checkpointer = StoreCheckpointer(state, progress, context.victims_at_once)
        found = attack_all(setting, row, told, checkpointer)
        for victim, client in zip(chunk, clients, strict=True):
            started = time.perf_counter()
            reconstruction, normalisation = next(found)
            seconds = time.perf_counter() - started
            seen = judge.score(victim, reconstruction, client.masks, normalisation)
            totals.rows[number].add(seen, reconstruction, seconds)
            totals.keep(victim, number, judge.truth(victim), seen)
            progress.advance(1)
    return totals


def attack_all(
    setting: AttackSetting, row: AttackRun, told: Sequence[Observation], checkpointer: Checkpointer
) -> Iterator[tuple[Reconstruction, Normalisation]]:
    """What an attacker finds of each client, and by which normalisation that becomes pixels."""
    own = Normalisation.of(setting.resolved.data)
    if setting.resolved.assumed_normalisation and row.attack.recovers_inputs:
        exact = isinstance(setting.defense, NoDefense)
        return attack_by_best_fit(row.attack, told, checkpointer, own, exact=exact)
    return ((found, own) for found in row.attack.on_many(told, checkpointer))


@dataclass(frozen=True)
class Client:
    """What the server saw of one client, and what only some attackers are told.

    The judge needs the dropout masks; ``passed`` are the images on their way to the client.
    """

    observation: Observation
    masks: tuple[torch.Tensor, ...] = ()
    passed: tuple[torch.Tensor, ...] = ()


def observe(setting: AttackSetting, victim: int, totals: SettingAccumulator) -> Client:
    """One client trains under the defense; the server receives its update."""
    made = setting.resolved
    assert setting.server is not None
    like = next(setting.model.parameters())
    indices = list(made.victims[victim])
    labels = made.data.labels[indices]
    if setting.captured is not None:
        knowledge = setting.knowledge(setting.rows[0], labels)
        return Client(setting.server.receive(setting.captured[victim](), knowledge, client=victim))
    draw = generator(made.seed, "client", victim)
    sent: list[Update] = []
    memory: Memory = {}
    line = RecordingDefense(setting.defense)
    for _ in range(made.stage.repeats):
        record = MaskRecorder()
        update, telemetry = defended_update(
            setting.model,
            made.data.images(indices).to(like),
            labels.to(like.device),
            data=made.data,
            defense=line if setting.defense.images_travel else setting.defense,
            generator=draw,
            training=made.training,
            mask_recorder=record,
            memory=memory,
        )
        sent.append(update)
    totals.telemetry.append(telemetry)
    knowledge = setting.knowledge(setting.rows[0], labels, record.masks_by_site())
    seen = setting.server.receive(sent[-1], knowledge, client=victim, earlier=sent[:-1])
    return Client(seen, record.masks_by_site(), tuple(line.passed))


def conclude(
    setting: AttackSetting,
    row: AttackRun,
    measured: RunAccumulator,
    totals: SettingAccumulator,
    judge: Judge | UnscoredJudge,
) -> Finding:
    """A finding from all that was measured of one row."""
    made = setting.resolved
    described = {**METRICS, **{metric.name: metric.description for metric in made.metrics}}
    summaries = {
        name: summarise(values, worst_is_high=described[name].leaks_high, seed=made.seed)
        for name, values in measured.scores.items()
    }
    reads_images = "read" in summaries
    spec = setting.defense.spec
    return Finding(
        key=key(setting, row),
        model=made.stage.model,
        data=made.label or made.stage.data,
        defense={"name": spec.name, "parameters": make_recordable(spec.parameters)},
        attacker=row.attacker.value,
        attack=part_name(row.attack),
        attack_parameters=make_recordable(read_parameters(row.attack)),
        knowledge=setting.knowledge(row, made.data.labels[:1]).summary(),
        victims=len(made.victims),
        seconds=measured.seconds,
        metrics={name: summaries[name] for name in described if name in summaries},
        unavailable=judge.unavailable if reads_images else {},
        baselines=judge.baselines() if reads_images else {},
        confidence=tuple(measured.confidence),
        diagnostics={k: fmean(v) for k, v in measured.diagnostics.items()},
        loss_curves=tuple(tuple(curve) for curve in measured.loss_curves),
        notes=(*setting.notes, *measured.notes),
        telemetry=totals.mean_telemetry(),
        recipe=recipe(setting),
        versions=versions(),
        reads_images=row.attack.reads_images,
        attack_label=row.attack.label,
        custom_metrics={name: described[name] for name in summaries if name not in METRICS},
    )


def recipe(setting: AttackSetting) -> dict[str, Any]:
    """What is needed to repeat a setting, besides its names."""
    stage = setting.resolved.stage
    device = next(setting.model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **stage.model_dump(mode="json", exclude={"defenses", "attacks", "model", "data"}),
        "image_size": list(setting.resolved.data.size),
        "mean": list(setting.resolved.data.mean),
        "std": list(setting.resolved.data.std),
        "assumed_normalisation": setting.resolved.assumed_normalisation,
        "seed": setting.resolved.seed,
        "fingerprint": setting.resolved.fingerprint,
        "indices": [list(batch) for batch in setting.resolved.victims],
        "gallery": len(setting.resolved.victims) * stage.batch_size + len(setting.resolved.public),
        "scored": setting.resolved.scored,
        "left_out": list(setting.left_out),
        "clients_did": setting.resolved.clients_did,
        "device": name,
    }


def identity(setting: AttackSetting, row: AttackRun | None) -> dict[str, Any]:
    """What tells a finding (or, without a row, a setting) from all others."""
    stage = setting.resolved.stage
    same = {
        **stage.model_dump(mode="json", exclude={"defenses", "attacks"}),
        "defense": str(setting.defense),
        "seed": setting.resolved.seed,
        "fingerprint": setting.resolved.fingerprint,
        "altered": next((r.attack.altered_model for r in setting.rows), None),
        "rows": [f"{r.attack} {r.attacker}" for r in setting.rows] if row is None else None,
    }
    return same if row is None else {**same, "attack": str(row.attack), "attacker": row.attacker}


def name_of(setting: AttackSetting) -> str:
    """What a setting's chunks and states are called by."""
    return key_of(identity(setting, None)).rsplit("-", 1)[-1]


def key(setting: AttackSetting, row: AttackRun) -> str:
    return key_of(identity(setting, row))


def chunk_size(model: nn.Module) -> int:
    """How many updates of ``model`` are held at once: on a GPU, a tenth of its memory's worth."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    room, most = UPDATES_IN_MEMORY, VICTIMS_AT_ONCE
    device = next(model.parameters()).device
    if device.type == "cuda":
        room = max(room, torch.cuda.get_device_properties(device).total_memory // 10)
        most = VICTIMS_AT_ONCE_ON_GPU
    return max(1, min(most, room // max(size, 1)))


def pictures_of(totals: SettingAccumulator, row: int) -> dict[str, torch.Tensor]:
    """The kept pictures of one row, uint8 ``[n, C, H, W]``: ``seen``, and ``truth`` if known.

    Of iterative attacks also ``film.i``, victim i's frames, and ``film.i.at``, their iterations. Of
    defenses on updates ``heat``, overlays of heat maps, and ``plain``, the images below them.
    """
    found = sheet(totals.pictures)
    prefix = f"seen.{row}."
    names = sorted(n for n in totals.pictures if n.startswith(prefix))
    if not names:
        return found
    victims = [n.removeprefix(prefix) for n in names]
    found["seen"] = torch.stack([totals.pictures[n] for n in names])
    if f"truth.{victims[0]}" in totals.pictures:
        found["truth"] = torch.stack([totals.pictures[f"truth.{v}"] for v in victims])
    for number, victim in enumerate(victims):
        for part in ("", ".at"):
            film = totals.pictures.get(f"film.{row}.{victim}{part}")
            if film is not None:
                found[f"film.{number}{part}"] = film
    return found


@contextmanager
def full_precision() -> Iterator[None]:
    """float32 means float32: no TF32 in convolutions while an audit runs."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
