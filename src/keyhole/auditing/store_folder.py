"""Which folders an audit may write to: new ones, and those that hold the same audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keyhole.atomic import is_unfinished
from keyhole.auditing.run_folder import ANNEX, PLAN, read_run_plan
from keyhole.errors import RunFolderError
from keyhole.lock import LOCK

ORDER, SUMMARY = "order.json", "summary.json"
FOLDERS = ("findings", "pictures", "chunks", "states")
OWN = (SUMMARY, "report.html", ANNEX, *FOLDERS, ORDER)
"""What an audit writes beside its plan, in the order in which it is removed: a finding goes before
its pictures. The plan is written first and never removed before the rest."""

AUDIT_KEY = "stage"
"""A key that only the plans of audits have, not those of trainings and membership runs."""
SUFFIXES = {".json", ".safetensors"}
CONTENTS = {
    PLAN: b"",
    ORDER: b"[",
    SUMMARY: b'"verdicts"',
    "report.html": b"Keyhole",
    ANNEX: b"Keyhole",
}
"""What an audit's own files contain, which tells them from a user's of the same name."""


def check_folder(root: Path, plan: dict[str, Any], *, fresh: bool) -> None:
    """Refuses a folder that holds anything but this audit, or one that ``fresh`` replaces."""
    if root.exists() and not root.is_dir():
        raise RunFolderError(f"{root} is not a folder: choose another --out")
    try:
        known = read_run_plan(root)
    except RunFolderError:
        if not fresh:
            raise
        known = None
    if known is None:
        _check_unplanned(root, fresh=fresh)
    elif AUDIT_KEY not in known:
        raise RunFolderError(f"{root} holds another run, no audit: choose another --out")
    elif known != plan and not fresh:
        raise RunFolderError(
            f"{root} holds another audit, or one that another version of keyhole began: "
            "choose another --out, or replace it with --fresh"
        )


def _check_unplanned(root: Path, *, fresh: bool) -> None:
    """Refuses a folder without a plan, unless all in it may be what a killed audit left."""
    if not root.is_dir():
        return
    if any(not may_be_ours(path) for path in root.iterdir()):
        raise RunFolderError(f"{root} holds other files: choose another --out")
    whole = [path for path in root.rglob("*") if path.is_file() and not is_leftover(path)]
    if whole and not fresh:
        raise RunFolderError(
            f"{root} holds parts of an audit but no {PLAN}: choose another --out, or "
            "replace them with --fresh"
        )


def may_be_ours(path: Path) -> bool:
    """Whether an audit may have written what lies at the top of a folder without a plan."""
    if is_leftover(path):
        return True
    if path.name in FOLDERS:
        return path.is_dir() and all(
            is_leftover(each) or each.suffix in SUFFIXES for each in path.iterdir()
        )
    return path.is_file() and path.name in CONTENTS and CONTENTS[path.name] in path.read_bytes()


def is_leftover(path: Path) -> bool:
    """Whether a killed process may have left it."""
    return is_unfinished(path) or path.name == LOCK
