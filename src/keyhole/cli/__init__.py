"""The command line: parses, calls, prints."""

from __future__ import annotations

import sys

import typer

from keyhole.cli.audit import audit, list_all, report
from keyhole.cli.guard import guard
from keyhole.cli.membership import membership
from keyhole.cli.obfuscate import obfuscate
from keyhole.cli.study import study
from keyhole.cli.train import train
from keyhole.errors import KeyholeError

app = typer.Typer(
    help="How much of your clients' images can be seen through the updates they share?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(audit)
app.command()(train)
app.command()(guard)
app.command()(obfuscate)
app.command()(membership)
app.command()(report)
app.command("list")(list_all)
app.command()(study)


def main() -> None:
    """Entry point: errors that the user can put right become one line and exit code 2."""
    try:
        app()
    except KeyholeError as error:
        print(f"keyhole: {error}", file=sys.stderr)
        sys.exit(2)
