"""Runs the settings: clients train, the server observes, attackers attack, the judge scores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import torch
from torch import nn

from keyhole.attacks import Checkpointer, Reconstruction
from keyhole.attacks.first_step import undo_first_step
from keyhole.auditing.accumulator import SettingAccumulator
from keyhole.auditing.attack_setting import AttackRun, AttackSetting
from keyhole.auditing.captured_inference import CapturedMembership
from keyhole.auditing.client_normalisation import attack_by_best_fit
from keyhole.auditing.explanations import draw_heat_maps
from keyhole.auditing.finding import Finding
from keyhole.auditing.finding_builder import build_finding, compute_key, compute_setting_name
from keyhole.auditing.observed_client import ObservedClient, observe_client
from keyhole.auditing.results import AuditResult
from keyhole.auditing.scoring import AnyJudge, build_judge
from keyhole.auditing.store import Store
from keyhole.auditing.store_checkpointer import StoreCheckpointer
from keyhole.auditing.verdict import judge_findings
from keyhole.data import Normalisation
from keyhole.defenses import NoDefense
from keyhole.progress import Progress
from keyhole.threat import Observation

UPDATES_IN_MEMORY = 1 << 30
"""Bytes of updates held at once; more victims are attacked in several chunks."""

VICTIMS_AT_ONCE = 32
VICTIMS_AT_ONCE_ON_GPU = 128


@dataclass(frozen=True)
class RunContext:
    """Where a run keeps its results and shows its progress.

    Args:
        store: The run folder; None: nothing is kept.
        progress: Shows how much is done.
        victims_at_once: How many victims an attack may take at once; None: as many as fit.
    """

    store: Store | None
    progress: Progress
    victims_at_once: int | None = None


def run_settings(
    settings: Sequence[AttackSetting],
    context: RunContext,
    *,
    data_dir: str | None = None,
    notes: Sequence[str] = (),
    membership: CapturedMembership | None = None,
) -> AuditResult:
    """Runs every setting that the run folder does not know yet, and judges the defenses."""
    store = context.store
    attacked = [setting for setting in settings if setting.runs]
    context.progress.begin(sum(count_units(setting) for setting in attacked))
    if store is not None:
        store.write_order(
            [compute_key(setting, run) for setting in attacked for run in setting.runs]
        )
    judge: AnyJudge | None = None
    findings: list[Finding] = []
    with full_precision():
        for setting in attacked:
            finished = read_finished(setting, context)
            if not finished:
                if judge is None or judge.resolved is not setting.resolved:
                    if judge is not None:
                        judge.resolved.trained.clear()
                    judge = build_judge(setting.resolved, data_dir)
                finished = run_setting(setting.with_server(), judge, context)
            findings += finished
    skipped = tuple(s for setting in settings for s in setting.skipped)
    verdicts = tuple(judge_findings(findings, skipped))
    today = datetime.now(UTC).date().isoformat()
    result = AuditResult(tuple(findings), verdicts, skipped, store, tuple(notes), today, membership)
    if store is not None:
        store.write_summary(result.to_json())
    return result


def count_units(setting: AttackSetting, victims: int | None = None) -> int:
    """Steps of progress: each victim trains once and meets every attacker; None: all victims."""
    count = len(setting.resolved.victims) if victims is None else victims
    return count * (1 + len(setting.runs))


def read_finished(setting: AttackSetting, context: RunContext) -> list[Finding]:
    """What an earlier run found in the setting; [] unless it was finished."""
    if context.store is None:
        return []
    stored = [context.store.finding(compute_key(setting, run)) for run in setting.runs]
    findings = [finding for finding in stored if finding is not None]
    if len(findings) < len(stored):
        return []
    context.store.remove_unfinished(compute_setting_name(setting))
    context.progress.advance(count_units(setting))
    return findings


def run_setting(setting: AttackSetting, judge: AnyJudge, context: RunContext) -> list[Finding]:
    """All findings of one setting; chunks that an interrupted run finished are not repeated."""
    store, name = context.store, compute_setting_name(setting)
    victims, size = range(len(setting.resolved.victims)), compute_chunk_size(setting.model)
    totals = SettingAccumulator.empty(len(setting.runs))
    for start in victims[::size]:
        chunk = victims[start : start + size]
        part = None if store is None else read_chunk(store, f"{name}-{start}", len(chunk))
        if part is not None:
            context.progress.advance(count_units(setting, len(chunk)))
        else:
            part = run_chunk(setting, judge, chunk, context, f"{name}-{start}")
            if store is not None and len(chunk) < len(victims):
                store.add_chunk(f"{name}-{start}", part.to_json(), part.pictures)
        totals.extend(part)
    findings = []
    for number in range(len(setting.runs)):
        findings.append(build_finding(setting, number, totals, judge))
        if store is not None:
            store.add(findings[-1], totals.stack_pictures(number))
    if store is not None:
        store.remove_unfinished(name)
    return findings


def read_chunk(store: Store, name: str, victims: int) -> SettingAccumulator | None:
    """What an interrupted run found of a chunk; None where it did not finish the same victims.

    Another device, or a machine with more memory, takes other chunks.
    """
    stored = store.chunk(name)
    part = None if stored is None else SettingAccumulator.from_json(*stored)
    return part if part is not None and part.victims in (None, victims) else None


def run_chunk(
    setting: AttackSetting, judge: AnyJudge, victims: range, context: RunContext, name: str
) -> SettingAccumulator:
    """Some of a setting's clients: each trains once, then every attacker attacks them all."""
    totals = SettingAccumulator.empty(len(setting.runs))
    totals.victims = len(victims)
    doing = "clients train" if setting.captured is None else "updates are read"
    context.progress.show(f"{doing} under {setting.defense.name}, {setting.resolved.stage.model}")
    clients: list[ObservedClient] = []
    trained = setting.resolved.trained
    for victim in victims:
        started = time.perf_counter() + trained.spared_seconds
        clients.append(observe_client(setting, victim))
        totals.client_seconds += time.perf_counter() + trained.spared_seconds - started
        context.progress.advance(1)
    totals.telemetry = [c.telemetry for c in clients if c.telemetry is not None]
    totals.checks = [check for client in clients for check in client.checks]
    updates = [client.observation.update for client in clients]
    totals.pictures.update(draw_heat_maps(setting, victims, updates))
    for number in range(len(setting.runs)):
        attack_clients(setting, number, clients, judge, totals, context, f"{name}-{number}")
    return totals


def attack_clients(
    setting: AttackSetting,
    number: int,
    clients: Sequence[ObservedClient],
    judge: AnyJudge,
    totals: SettingAccumulator,
    context: RunContext,
    name: str,
) -> None:
    """Lets the attacker of this number attack some clients, and adds the scores to ``totals``."""
    run, progress = setting.runs[number], context.progress
    who = f"{run.attack.name} ({run.attacker})"
    progress.show(f"{who} against {setting.defense.name}, {setting.resolved.stage.model}")
    state = None if context.store is None else context.store.state(name)
    checkpointer = StoreCheckpointer(state, progress, context.victims_at_once)
    observations = [show_to_attacker(client, setting, run) for client in clients]
    found = reconstruct_all(setting, run, observations, checkpointer)
    for client in clients:
        started = time.perf_counter()
        reconstruction, normalisation = next(found)
        seconds = time.perf_counter() - started
        scored = judge.score(
            client.victim,
            reconstruction,
            client.masks,
            normalisation,
            sought=run.attack.reads_images,
        )
        totals.runs[number].add(scored, reconstruction, seconds)
        totals.add_pictures(client.victim, number, judge.truth(client.victim), scored)
        progress.advance(1)


def show_to_attacker(client: ObservedClient, setting: AttackSetting, run: AttackRun) -> Observation:
    """The observation of a client with what this attacker knows."""
    labels = setting.resolved.labels_of(client.victim)
    knowledge = setting.build_knowledge(run, labels, client.masks, client.intercepted)
    shown = client.observation.rounds[-run.attack.most_rounds :]
    return undo_first_step(replace(client.observation, knowledge=knowledge, rounds=shown))


def reconstruct_all(
    setting: AttackSetting,
    run: AttackRun,
    observations: Sequence[Observation],
    checkpointer: Checkpointer,
) -> Iterator[tuple[Reconstruction, Normalisation]]:
    """What an attacker finds of each client, and the normalisation that turns it into pixels."""
    own = Normalisation.of(setting.resolved.data)
    if setting.resolved.assumed_normalisation and run.attack.recovers_inputs:
        exact = isinstance(setting.defense, NoDefense)
        return attack_by_best_fit(run.attack, observations, checkpointer, own, exact=exact)
    return ((found, own) for found in run.attack.on_many(observations, checkpointer))


def compute_chunk_size(model: nn.Module) -> int:
    """How many updates of ``model`` are held at once; on a GPU, up to a tenth of its memory."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    room, most = UPDATES_IN_MEMORY, VICTIMS_AT_ONCE
    device = next(model.parameters()).device
    if device.type == "cuda":
        room = max(room, torch.cuda.get_device_properties(device).total_memory // 10)
        most = VICTIMS_AT_ONCE_ON_GPU
    return max(1, min(most, room // max(size, 1)))


@contextmanager
def full_precision() -> Iterator[None]:
    """Switches TF32 off in convolutions, so that float32 means float32 while an audit runs."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
