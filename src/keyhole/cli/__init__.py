"""The command line: parses, calls, prints. Nothing heavy is imported before it is needed."""

from __future__ import annotations

import sys

from keyhole.interrupts import INTERRUPTS

__all__ = ["main"]


def main() -> None:
    """The entry point: errors that the user can correct become one line and exit code 2."""
    with INTERRUPTS.handled():
        with INTERRUPTS.leaving_at_once():
            from keyhole.cli.app import make_app
            from keyhole.cli.command import run
        code = run(make_app(), sys.argv[1:])
    sys.exit(code)
