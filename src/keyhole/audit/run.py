"""Playing the scenes: clients train, the server observes, attackers attack, the judge scores."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import nn

from keyhole.attacks import Reconstruction, Workbench
from keyhole.audit.bench import AuditBench
from keyhole.audit.cast import Cast
from keyhole.audit.explanations import explained, sheet
from keyhole.audit.finding import Finding, key_of, versions
from keyhole.audit.normalising import attack_by_best_fit
from keyhole.audit.progress import Progress
from keyhole.audit.scene import Row, Scene, Skipped
from keyhole.audit.scoring import Blind, Judge
from keyhole.audit.store import Store
from keyhole.audit.tally import RowTally, SceneTally
from keyhole.audit.tap import Tapped
from keyhole.audit.verdict import Verdict, verdicts
from keyhole.data import Normalisation
from keyhole.defenses import NoDefense
from keyhole.defenses.base import Memory
from keyhole.federation import defended_update
from keyhole.metrics import METRICS, summarise
from keyhole.models.dropout_sites import Record
from keyhole.registry import parameters
from keyhole.seeds import generator
from keyhole.threat import Observation
from keyhole.update import Update

UPDATES_IN_MEMORY = 1 << 30
"""Bytes of updates held at once; more victims are attacked in several chunks."""

VICTIMS_AT_ONCE = 32
VICTIMS_AT_ONCE_ON_GPU = 128


@dataclass(frozen=True)
class AuditResult:
    """Everything an audit found."""

    findings: tuple[Finding, ...]
    verdicts: tuple[Verdict, ...]
    skipped: tuple[Skipped, ...]
    store: Store | None
    notes: tuple[str, ...] = ()
    """What of the material could not be used, a line each."""

    @property
    def run(self) -> str | None:
        """The run folder."""
        return None if self.store is None else str(self.store.root)

    def to_json(self) -> dict[str, Any]:
        return {
            "findings": [f.to_json() for f in self.findings],
            "verdicts": [v.to_json() for v in self.verdicts],
            "run": self.run,
            "skipped": [asdict(s) for s in self.skipped],
            "notes": list(self.notes),
        }


def play(
    scenes: Sequence[Scene],
    *,
    store: Store | None,
    progress: Progress,
    data_dir: str | None = None,
    victims_at_once: int | None = None,
    notes: Sequence[str] = (),
) -> AuditResult:
    """Plays every scene that the store does not know yet, and judges."""
    progress.begin(sum(len(s.cast.victims) * (1 + len(s.rows)) for s in scenes if s.rows))
    if store is not None:
        store.keep_order([key(scene, row) for scene in scenes for row in scene.rows])
    judge: Judge | Blind | None = None
    judged_cast: Cast | None = None  # scenes of one cast follow each other and share a judge
    findings: list[Finding] = []
    with full_precision():
        for scene in scenes:
            if not scene.rows:
                continue
            units = len(scene.cast.victims) * (1 + len(scene.rows))
            known = [store.finding(key(scene, row)) for row in scene.rows] if store else [None]
            if store is not None and all(known):
                store.drop_begun(name_of(scene))
                findings += [f for f in known if f is not None]
                progress.advance(units)
                continue
            if judge is None or judged_cast is not scene.cast:
                judge = Judge(scene.cast, data_dir) if scene.cast.scored else Blind(scene.cast)
                judged_cast = scene.cast
            desk = Desk(store, progress, victims_at_once)
            findings += play_scene(scene.opened(), judge, desk)
    skipped = tuple(s for scene in scenes for s in scene.skipped)
    judged = tuple(verdicts(findings, skipped))
    result = AuditResult(tuple(findings), judged, skipped, store, tuple(notes))
    if store is not None:
        store.write_json("summary.json", result.to_json())
    return result


def rebuild(store: Store) -> AuditResult:
    """The result of an earlier audit, from its folder; of an interrupted one, what is there."""
    skipped, notes = store.skipped_and_notes()
    findings = store.findings()
    return AuditResult(tuple(findings), tuple(verdicts(findings, skipped)), skipped, store, notes)


@dataclass(frozen=True)
class Desk:
    """Where a run keeps things, who watches it, and how many victims it takes at once."""

    store: Store | None
    progress: Progress
    victims_at_once: int | None = None


def play_scene(scene: Scene, judge: Judge | Blind, desk: Desk) -> list[Finding]:
    """All findings of one scene; finished chunks of an interrupted run are taken up."""
    store, progress = desk.store, desk.progress
    name = name_of(scene)
    victims = range(len(scene.cast.victims))
    tally = SceneTally.empty(len(scene.rows))
    for start in victims[:: chunk_size(scene.model)]:
        chunk = victims[start : start + chunk_size(scene.model)]
        known = store.chunk(f"{name}-{start}") if store else None
        if known is not None:
            part = SceneTally.from_json(*known)
            progress.advance(len(chunk) * (1 + len(scene.rows)))
        else:
            part = play_chunk(scene, judge, chunk, desk, name)
            if store is not None and len(chunk) < len(victims):
                store.add_chunk(f"{name}-{start}", part.to_json(), part.pictures)
        tally.extend(part)
    findings = []
    for number, row in enumerate(scene.rows):
        finding = conclude(scene, row, tally.rows[number], tally, judge)
        if store is not None:
            store.add(finding, pictures_of(tally, number))
        findings.append(finding)
    if store is not None:
        store.drop_begun(name)
    return findings


def play_chunk(
    scene: Scene, judge: Judge | Blind, chunk: range, desk: Desk, name: str = "scene"
) -> SceneTally:
    """Some of a scene's clients: each trains once, then every attacker attacks them all."""
    progress = desk.progress
    tally = SceneTally.empty(len(scene.rows))
    clients: list[Client] = []
    doing = "clients train" if scene.captured is None else "updates are read"
    progress.show(f"{doing} under {scene.defense.name}, {scene.cast.stage.model}")
    for victim in chunk:
        started = time.perf_counter()
        clients.append(observe(scene, victim, tally))
        tally.client_seconds += time.perf_counter() - started
        progress.advance(1)
    tally.pictures.update(explained(scene, chunk, [c.observation.update for c in clients]))
    for number, row in enumerate(scene.rows):
        who = f"{row.attack.name} ({row.attacker})"
        progress.show(f"{who} against {scene.defense.name}, {scene.cast.stage.model}")
        labels = [scene.cast.data.labels[list(scene.cast.victims[v])] for v in chunk]
        told = [
            replace(c.observation, knowledge=scene.knowledge(row, y, c.masks, c.passed))
            for c, y in zip(clients, labels, strict=True)
        ]
        state = desk.store.state(f"{name}-{chunk.start}-{number}") if desk.store else None
        bench = AuditBench(state, progress, desk.victims_at_once)
        found = attack_all(scene, row, told, bench)
        for victim, client in zip(chunk, clients, strict=True):
            started = time.perf_counter()
            reconstruction, normalisation = next(found)
            seconds = time.perf_counter() - started
            seen = judge.score(victim, reconstruction, client.masks, normalisation)
            tally.rows[number].add(seen, reconstruction, seconds)
            tally.keep(victim, number, judge.truth(victim), seen)
            progress.advance(1)
    return tally


def attack_all(
    scene: Scene, row: Row, told: Sequence[Observation], bench: Workbench
) -> Iterator[tuple[Reconstruction, Normalisation]]:
    """What an attacker finds of each client, and by which normalisation that becomes pixels."""
    own = Normalisation.of(scene.cast.data)
    if scene.cast.assumed_normalisation and row.attack.recovers_inputs:
        exact = isinstance(scene.defense, NoDefense)
        return attack_by_best_fit(row.attack, told, bench, own, exact=exact)
    return ((found, own) for found in row.attack.on_many(told, bench))


@dataclass(frozen=True)
class Client:
    """What the server saw of one client, and what only some attackers are told.

    The judge needs the dropout masks; ``passed`` are the images on their way to the client.
    """

    observation: Observation
    masks: tuple[torch.Tensor, ...] = ()
    passed: tuple[torch.Tensor, ...] = ()


def observe(scene: Scene, victim: int, tally: SceneTally) -> Client:
    """One client trains under the defense; the server receives its update."""
    made = scene.cast
    assert scene.server is not None
    like = next(scene.model.parameters())
    indices = list(made.victims[victim])
    labels = made.data.labels[indices]
    if scene.captured is not None:
        knowledge = scene.knowledge(scene.rows[0], labels)
        return Client(scene.server.receive(scene.captured[victim](), knowledge, client=victim))
    draw = generator(made.seed, "client", victim)
    sent: list[Update] = []
    memory: Memory = {}
    line = Tapped(scene.defense)
    for _ in range(made.stage.repeats):
        record = Record()
        update, telemetry = defended_update(
            scene.model,
            made.data.images(indices).to(like),
            labels.to(like.device),
            data=made.data,
            defense=line if scene.defense.images_travel else scene.defense,
            generator=draw,
            training=made.training,
            record=record,
            memory=memory,
        )
        sent.append(update)
    tally.telemetry.append(telemetry)
    knowledge = scene.knowledge(scene.rows[0], labels, record.by_site())
    seen = scene.server.receive(sent[-1], knowledge, client=victim, earlier=sent[:-1])
    return Client(seen, record.by_site(), tuple(line.passed))


def conclude(
    scene: Scene, row: Row, measured: RowTally, tally: SceneTally, judge: Judge | Blind
) -> Finding:
    """A finding from all that was measured of one row."""
    made = scene.cast
    summaries = {
        name: summarise(values, worst_is_high=METRICS[name].leaks_high, seed=made.seed)
        for name, values in measured.scores.items()
    }
    reads_images = "read" in summaries
    spec = scene.defense.spec
    return Finding(
        key=key(scene, row),
        model=made.stage.model,
        data=made.label or made.stage.data,
        defense={"name": spec.name, "parameters": spec.parameters},
        attacker=row.attacker.value,
        attack=row.attack.name,
        attack_parameters=parameters(row.attack),
        knowledge=scene.knowledge(row, made.data.labels[:1]).summary(),
        victims=len(made.victims),
        seconds=measured.seconds,
        metrics={name: summaries[name] for name in METRICS if name in summaries},
        unavailable=judge.unavailable if reads_images else {},
        baselines=judge.baselines() if reads_images else {},
        confidence=tuple(measured.confidence),
        diagnostics={k: fmean(v) for k, v in measured.diagnostics.items()},
        loss_curves=tuple(tuple(curve) for curve in measured.loss_curves),
        notes=(*scene.notes, *measured.notes),
        telemetry=tally.mean_telemetry(),
        recipe=recipe(scene),
        versions=versions(),
        reads_images=row.attack.reads_images,
    )


def recipe(scene: Scene) -> dict[str, Any]:
    """What is needed to repeat a scene, besides its names."""
    stage = scene.cast.stage
    device = next(scene.model.parameters()).device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {
        **stage.model_dump(mode="json", exclude={"defenses", "attacks", "model", "data"}),
        "image_size": list(scene.cast.data.size),
        "mean": list(scene.cast.data.mean),
        "std": list(scene.cast.data.std),
        "assumed_normalisation": scene.cast.assumed_normalisation,
        "seed": scene.cast.seed,
        "fingerprint": scene.cast.fingerprint,
        "indices": [list(batch) for batch in scene.cast.victims],
        "gallery": len(scene.cast.victims) * stage.batch_size + len(scene.cast.public),
        "scored": scene.cast.scored,
        "left_out": list(scene.left_out),
        "clients_did": scene.cast.clients_did,
        "device": name,
    }


def identity(scene: Scene, row: Row | None) -> dict[str, Any]:
    """What tells a finding (or, without a row, a scene) from all others."""
    stage = scene.cast.stage
    same = {
        **stage.model_dump(mode="json", exclude={"defenses", "attacks"}),
        "defense": str(scene.defense),
        "seed": scene.cast.seed,
        "fingerprint": scene.cast.fingerprint,
        "altered": next((r.attack.altered_model for r in scene.rows), None),
        "rows": [f"{r.attack} {r.attacker}" for r in scene.rows] if row is None else None,
    }
    return same if row is None else {**same, "attack": str(row.attack), "attacker": row.attacker}


def name_of(scene: Scene) -> str:
    """What a scene's chunks and states are called by."""
    return key_of(identity(scene, None)).rsplit("-", 1)[-1]


def key(scene: Scene, row: Row) -> str:
    return key_of(identity(scene, row))


def chunk_size(model: nn.Module) -> int:
    """How many updates of ``model`` are held at once: on a GPU, a tenth of its memory's worth."""
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    room, most = UPDATES_IN_MEMORY, VICTIMS_AT_ONCE
    device = next(model.parameters()).device
    if device.type == "cuda":
        room = max(room, torch.cuda.get_device_properties(device).total_memory // 10)
        most = VICTIMS_AT_ONCE_ON_GPU
    return max(1, min(most, room // max(size, 1)))


def pictures_of(tally: SceneTally, row: int) -> dict[str, torch.Tensor]:
    """The kept pictures of one row, uint8 ``[n, C, H, W]``: ``seen``, and ``truth`` if known.

    Of iterative attacks also ``film.i``, victim i's frames, and ``film.i.at``, their iterations. Of
    defenses on updates ``heat``, overlays of heat maps, and ``plain``, the images below them.
    """
    found = sheet(tally.pictures)
    prefix = f"seen.{row}."
    names = sorted(n for n in tally.pictures if n.startswith(prefix))
    if not names:
        return found
    victims = [n.removeprefix(prefix) for n in names]
    found["seen"] = torch.stack([tally.pictures[n] for n in names])
    if f"truth.{victims[0]}" in tally.pictures:
        found["truth"] = torch.stack([tally.pictures[f"truth.{v}"] for v in victims])
    for number, victim in enumerate(victims):
        for part in ("", ".at"):
            film = tally.pictures.get(f"film.{row}.{victim}{part}")
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
