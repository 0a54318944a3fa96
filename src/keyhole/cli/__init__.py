"""The command line: parses, calls, prints."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from keyhole.cli.audit import audit, report
from keyhole.cli.command import Command, Commands, run
from keyhole.cli.guard import guard
from keyhole.cli.listing import list_all
from keyhole.cli.membership import membership
from keyhole.cli.obfuscate import obfuscate
from keyhole.cli.study import study
from keyhole.cli.train import train
from keyhole.terminal import say
from keyhole.version import __version__

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (audit, train, guard, obfuscate, membership, report):
    app.command(cls=Command)(command)
app.command("list", cls=Command)(list_all)
app.command(cls=Command)(study)


def print_version(asked: bool) -> None:
    """Prints the version and leaves, where it is asked for."""
    if asked:
        say(f"keyhole {__version__}")
        raise typer.Exit


@app.callback()
def keyhole(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """How much of your clients' images can be seen through the updates they share?"""


def main() -> None:
    """Entry point: errors that the user can put right become one line and exit code 2."""
    sys.exit(run(app, sys.argv[1:]))
