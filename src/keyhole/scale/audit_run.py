"""Runs a sweep in pieces, and puts what they found into one run folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from keyhole.atomic import read_json
from keyhole.auditing.attack_setting import Skipped
from keyhole.auditing.finding import Finding
from keyhole.auditing.listed_values import SEED, SWEPT, describe_listed
from keyhole.auditing.plan import Stage
from keyhole.auditing.results import AuditResult
from keyhole.auditing.store import Store
from keyhole.auditing.sweep import Sweep
from keyhole.auditing.verdict import judge_findings
from keyhole.errors import DoesNotFit, KeyholeError, RunFolderError
from keyhole.progress import Progress
from keyhole.scale.audit_pieces import build_audit_piece, split_stage
from keyhole.scale.outcome import Place
from keyhole.scale.parts import check_stages
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import PieceStore
from keyhole.scale.run import FinishedPiece, run_pieces
from keyhole.scale.shard import Shard

PLACE = "place"
"""Where a finding's recipe holds the number of its piece in the plan."""


@dataclass(frozen=True)
class AuditPiece:
    """A piece of a sweep.

    Args:
        number: Its place in the plan, from 0.
        stage: The stage that it audits.
        seed: The seed.
        piece: The piece.
        values: The values of what the plan lists.
    """

    number: int
    stage: Stage
    seed: int
    piece: Piece
    values: dict[str, Any]

    @property
    def suffix(self) -> str:
        """What tells its data from that of other pieces in reports: `` (batch_size=4, seed=1)``."""
        return describe_listed(self.values)

    @property
    def full_title(self) -> str:
        """Its title and the listed values, each said once."""
        seed = f", seed {self.seed}" if SEED in self.values else ""
        return self.piece.title.removesuffix(seed) + self.suffix


def list_audit_pieces(sweep: Sweep) -> list[AuditPiece]:
    """All pieces of a sweep, each once, in the order of the plan.

    Args:
        sweep: The plan.
    """
    found: dict[str, AuditPiece] = {}
    for plan in sweep.plans:
        for whole in plan.stage:
            for stage in split_stage(whole):
                piece = build_audit_piece(stage, plan.seed)
                fields = stage.model_dump(mode="json")
                listed = [name for name in sweep.swept if name in Stage.model_fields]
                values = {name: fields.get(name, getattr(stage, name)) for name in listed}
                if sweep.swept:
                    values |= {"model": stage.model, "data": stage.data}
                values |= {SEED: plan.seed} if SEED in sweep.swept else {}
                known = AuditPiece(len(found), stage, plan.seed, piece, values)
                found.setdefault(piece.key, known)
    return list(found.values())


def run_sweep(
    sweep: Sweep,
    *,
    out: Path,
    store: PieceStore,
    on: Place | None = None,
    machine: Machine | None = None,
    shard: Shard | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> AuditResult:
    """Runs the pieces of a sweep that have no result yet; its run folder is that of any audit.

    Args:
        sweep: The plan.
        out: The run folder.
        store: Where pieces keep their results, for this plan and others.
        on: Where to run them; None: in this process.
        machine: What each piece may use.
        shard: Which of the pieces to run; None: all.
        fresh: Replaces an earlier audit in the folder, and the results of the pieces.
        progress: Shows how much is done; None: nothing is shown.
    """
    pieces = list_audit_pieces(sweep)
    check_stages([each.stage for each in pieces])
    if shard is not None:
        pieces = shard.choose(pieces)
    folder = Store.open(out, describe_plan(sweep, shard), fresh=fresh)
    try:
        if fresh:
            for each in pieces:
                store.forget(each.piece)
        try:
            run_pieces([p.piece for p in pieces], store, on=on, machine=machine, progress=progress)
        except Exception:
            finished = [each for each in pieces if store.is_finished(each.piece)]
            if finished:
                collect_pieces(finished, store, folder)
            raise
        result = collect_pieces(pieces, store, folder)
        if shard is None:
            check_any_found(result)
        return result
    except KeyholeError:
        folder.discard_if_empty()
        raise
    finally:
        folder.release()


def describe_plan(sweep: Sweep, shard: Shard | None) -> dict[str, Any]:
    """What the run folder says of its plan."""
    return sweep.to_json() | ({} if shard is None else {"shard": str(shard)})


def collect_pieces(pieces: Sequence[AuditPiece], store: PieceStore, folder: Store) -> AuditResult:
    """Puts what finished pieces found into a run folder; returns it as one result."""
    findings: dict[str, Finding] = {}
    skipped: list[Skipped] = []
    notes: list[str] = []
    for each in pieces:
        finished = FinishedPiece(each.piece, store)
        left = finished.result
        source = Store(finished.folder)
        for finding in read_findings(source.root, left["findings"]):
            findings[finding.key] = label_finding(finding, each)
            known = folder.finding(finding.key)
            if known is None or known != findings[finding.key]:
                folder.add(findings[finding.key], source.pictures(finding.key))
        for values in left["skipped"]:
            skip = Skipped(**values)
            skipped.append(replace(skip, data=skip.data + each.suffix))
        notes += left["notes"]
    return conclude(list(findings.values()), skipped, notes, folder)


def conclude(
    findings: Sequence[Finding], skipped: Sequence[Skipped], notes: Sequence[str], folder: Store
) -> AuditResult:
    """The result of findings that are in a run folder, which is told of it."""
    once = tuple(dict.fromkeys(skipped))
    verdicts = tuple(judge_findings(findings, once))
    said = tuple(dict.fromkeys(notes))
    result = AuditResult(tuple(findings), verdicts, once, folder, said)
    folder.write_order([finding.key for finding in findings])
    folder.write_summary(result.to_json())
    return result


def read_findings(root: Path, keys: Sequence[str]) -> Iterator[Finding]:
    """The findings of these keys in a run folder."""
    for key in keys:
        path = root / "findings" / f"{key}.json"
        if not path.is_file():
            raise RunFolderError(
                f"{path} is missing: remove {root.parent}, and its piece is run again"
            )
        yield Finding.from_json(read_json(path), source=str(path))


def label_finding(finding: Finding, piece: AuditPiece) -> Finding:
    """A finding as reports of the sweep show it: its data is named with the listed values."""
    recipe = {**finding.recipe, PLACE: piece.number}
    if piece.values:
        recipe[SWEPT] = piece.values
    return replace(finding, data=finding.data + piece.suffix, recipe=recipe)


def check_any_found(result: AuditResult) -> None:
    """Raises with the reasons if no attack applied in any of the settings."""
    if not result.findings:
        why = "; ".join(dict.fromkeys(f"{s.attack}: {s.why}" for s in result.skipped))
        raise DoesNotFit(f"none of the attacks applies: {why}")
