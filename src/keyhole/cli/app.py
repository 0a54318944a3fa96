"""The commands of ``keyhole``: a table of names, functions and summaries."""

from __future__ import annotations

from typing import Annotated

import click
import typer

from keyhole.cli.command import Commands
from keyhole.cli.lazy_command import LazyCommand, plugin_commands
from keyhole.terminal import say
from keyhole.version import __version__

COMMANDS = (
    LazyCommand(
        "audit",
        "keyhole.cli.audit:audit",
        "Attack clients through what they share, and judge each defense by its worst attacker.",
    ),
    LazyCommand(
        "train",
        "keyhole.cli.train:train",
        "Train a model by federated averaging, under a defense, and write down what the server "
        "sees.",
    ),
    LazyCommand(
        "guard",
        "keyhole.cli.guard:guard",
        "Check a client's own update before it is uploaded.",
    ),
    LazyCommand(
        "obfuscate",
        "keyhole.cli.obfuscate:obfuscate",
        "Shuffle images (CSVAR) before they travel: N versions of each, for N epochs of training.",
    ),
    LazyCommand(
        "membership",
        "keyhole.cli.membership:membership",
        "Ask a trained model which images it was trained on, and judge defenses by the answers.",
    ),
    LazyCommand(
        "report",
        "keyhole.cli.report:report",
        "Show an earlier run again; write its page, tables and figures.",
    ),
    LazyCommand(
        "compare",
        "keyhole.cli.compare:compare",
        "Compare audits with the first of them, attacker by attacker and image by image.",
    ),
    LazyCommand(
        "list",
        "keyhole.cli.listing:list_all",
        "List attacks, defenses, models, data sets and metrics, or tell of one of them.",
    ),
)
"""Keyhole's own. A test holds each summary against the function's docstring."""

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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


def make_app() -> click.Command:
    """The whole command line: Keyhole's commands, then those of other packages.

    A package cannot take the place of one of Keyhole's own commands.
    """
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for command in (*COMMANDS, *plugin_commands()):
        if command.name not in group.commands:
            group.add_command(command)
    return group
