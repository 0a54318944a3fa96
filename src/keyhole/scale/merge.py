"""Puts shards of one plan together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keyhole.auditing.finding import Finding
from keyhole.auditing.results import AuditResult, read_skipped_and_notes
from keyhole.auditing.store import Store
from keyhole.auditing.store_folder import AUDIT_KEY
from keyhole.errors import BadValue, RunFolderError
from keyhole.scale.audit_run import PLACE, check_any_found, conclude
from keyhole.scale.shard import Shard, read_shard

SHARD = "shard"


def merge_runs(
    runs: Sequence[Path], out: Path, *, fresh: bool = False, partial: bool = False
) -> AuditResult:
    """Puts the shards of one audit into one run folder, in the order of the plan.

    Args:
        runs: The run folders of the shards.
        out: The folder of the whole.
        fresh: Replaces an earlier audit in the folder.
        partial: Whether shards may be missing.
    """
    if out.resolve() in {run.resolve() for run in runs}:
        raise BadValue(f"out: {out} is one of the runs: choose another folder")
    plans = {run: read_shard_plan(run) for run in runs}
    whole = check_one_plan(plans)
    if not partial:
        check_all_there(plans)
        for run in runs:
            check_whole(Store.existing(run))
    results = [load_shard(run) for run in runs]
    findings: dict[str, Finding] = {}
    sources: dict[str, AuditResult] = {}
    for result in results:
        for finding in result.findings:
            findings.setdefault(finding.key, finding)
            sources.setdefault(finding.key, result)
    ordered = sorted(findings.values(), key=lambda f: int(f.recipe.get(PLACE, 0)))
    folder = Store.open(out, whole, fresh=fresh)
    try:
        for finding in ordered:
            source = sources[finding.key].store
            if folder.finding(finding.key) is None and source is not None:
                folder.add(finding, source.pictures(finding.key))
        skipped = [skip for result in results for skip in result.skipped]
        notes = [note for result in results for note in result.notes]
        merged = conclude(ordered, skipped, notes, folder)
        check_any_found(merged)
        return merged
    except BaseException:
        folder.discard_if_empty()
        raise
    finally:
        folder.release()


def check_whole(shard: Store) -> None:
    """Raises where a shard lacks findings that it had, as after a copy that was broken off."""
    missing = [key for key in shard.order() if shard.finding(key) is None]
    if missing:
        raise RunFolderError(
            f"{shard.root} lacks {len(missing)} of the findings that it names, such as "
            f"{missing[0]}: copy the whole folder, or pass --partial"
        )


def load_shard(run: Path) -> AuditResult:
    """What a shard found; it may be that no attack applied to any of its pieces."""
    if any((run / "findings").glob("*.json")):
        return AuditResult.load(run)
    store = Store.existing(run)
    skipped, notes = read_skipped_and_notes(store.summary(), str(run))
    return AuditResult((), (), skipped, store, notes)


def read_shard_plan(run: Path) -> dict[str, Any]:
    """The plan of a run folder; raises where it is no audit."""
    plan = Store.existing(run).plan()
    if plan is None or AUDIT_KEY not in plan:
        raise RunFolderError(f"{run} holds no audit: name the run folders of --shard")
    return plan


def check_one_plan(plans: dict[Path, dict[str, Any]]) -> dict[str, Any]:
    """The plan that all runs are shards of; raises where there are several."""
    wholes = {run: {k: v for k, v in p.items() if k != SHARD} for run, p in plans.items()}
    first, whole = next(iter(wholes.items()))
    for run, other in wholes.items():
        if other != whole:
            raise BadValue(f"{run} holds another plan than {first}: merge shards of one plan")
    return whole


def check_all_there(plans: dict[Path, dict[str, Any]]) -> None:
    """Raises where shards are missing, or have not finished."""
    shards = {run: read_shard(str(p[SHARD])) for run, p in plans.items() if SHARD in p}
    if len(shards) < len(plans):
        return  # one of the runs is whole
    counts = {shard.count for shard in shards.values()}
    if len(counts) > 1:
        raise BadValue("the runs are shards of different numbers: merge those of one number")
    (count,) = counts
    there = {shard.number for run, shard in shards.items() if (run / "summary.json").is_file()}
    missing = [str(Shard(n, count)) for n in range(1, count + 1) if n not in there]
    if missing:
        raise RunFolderError(
            f"shards {', '.join(missing[:8])}{' ...' if missing[8:] else ''} are not finished or "
            "not named: run them, name their folders, or pass --partial"
        )
