"""What a folder holds: an audit, a membership experiment, or neither; imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from keyhole.atomic import read_json
from keyhole.errors import RunFolderError

PLAN = "plan.json"
ANNEX = "annex.html"
"""The annex for a data protection impact assessment, where somebody asked for it."""


def is_membership_run(root: Path) -> bool:
    """Whether a folder holds a membership experiment, rather than an audit."""
    path = root / PLAN
    plan = read_json(path) if path.is_file() else None
    return isinstance(plan, dict) and "members" in plan


def read_run_plan(root: Path) -> dict[str, Any] | None:
    """The plan of the run in a folder; None where there is none."""
    path = root / PLAN
    return read_object(path) if path.is_file() else None


def check_is_run(path: Path) -> None:
    """Raises where there is no run to read: no folder of one, and no file of a result."""
    if not path.is_file() and read_run_plan(path) is None:
        raise RunFolderError(f"{path} is not the folder of an audit: it has no {PLAN}")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON file that holds one object."""
    found = read_json(path)
    if not isinstance(found, dict):
        raise RunFolderError(f"{path} is not as an audit writes it: it holds no JSON object")
    return found
