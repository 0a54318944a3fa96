"""The option ``--frontier`` of audits and reports: by which frontier to say what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from keyhole.frontier.result import FrontierResult


def open_frontier(folder: Path | None) -> FrontierResult | None:
    """Opens the frontier before the audit starts, so that a wrong folder is refused in time."""
    if folder is None:
        return None
    from keyhole.frontier.result import FrontierResult

    return FrontierResult.load(folder)


def keep_frontier(frontier: FrontierResult | None, run: Path) -> None:
    """Writes the frontier into the run folder, where later reports find it."""
    if frontier is not None and run.is_dir():
        frontier.save(run)
