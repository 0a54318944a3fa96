"""The command line: parses, calls, prints. Nothing heavy is imported before it is needed.

Besides ``main``, the public names are for commands that other packages add (``keyhole.commands``):
options that several commands share, the display of progress, and all commands as click has them.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from keyhole.interrupts import INTERRUPTS
from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.cli.app import load_commands
    from keyhole.cli.places import (
        Address,
        CpusPerPiece,
        GpusPerPiece,
        On,
        Pieces,
        PlaceRequest,
        Workers,
    )
    from keyhole.cli.progress import show_progress
    from keyhole.cli.shared import DataDir, Device, Json, read_victims_at_once

__all__ = [
    "Address",
    "CpusPerPiece",
    "DataDir",
    "Device",
    "GpusPerPiece",
    "Json",
    "On",
    "Pieces",
    "PlaceRequest",
    "Workers",
    "load_commands",
    "main",
    "read_victims_at_once",
    "show_progress",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)


def main() -> None:
    """The entry point: errors that the user can correct become one line and exit code 2."""
    with INTERRUPTS.handled():
        with INTERRUPTS.leaving_at_once():
            from keyhole.cli.app import make_app
            from keyhole.cli.command import run
        code = run(make_app(), sys.argv[1:])
    sys.exit(code)
