"""The commands of ``keyhole``: their names and functions."""

from __future__ import annotations

from typing import Annotated

import click
import typer

from keyhole.cli.command import restore_argument_help
from keyhole.cli.lazy_command import LazyCommand, commands_beside, plugin_commands
from keyhole.terminal import say
from keyhole.version import __version__

COMMANDS = tuple(
    LazyCommand(name, f"keyhole.cli.{function}")
    for name, function in {
        "audit": "audit:audit",
        "train": "train:train",
        "guard": "guard:guard",
        "obfuscate": "obfuscate:obfuscate",
        "membership": "membership:membership",
        "epsilon": "epsilon:epsilon",
        "report": "report:report",
        "compare": "compare:compare",
        "merge": "merge:merge",
        "plan": "plan:plan",
        "frontier": "frontier:frontier",
        "leaderboard": "leaderboard:leaderboard",
        "list": "listing:list_all",
    }.items()
)
"""Keyhole's own commands."""

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)


def print_version(asked: bool) -> None:
    """Prints the version and exits, if that is asked for."""
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
    """Builds the whole command line: Keyhole's commands, then those of other packages.

    A package cannot replace one of Keyhole's own commands.
    """
    group = typer.main.get_command(app)
    assert isinstance(group, click.Group)
    for command in (*COMMANDS, *plugin_commands(), *commands_beside()):
        if command.name not in group.commands:
            group.add_command(command)
    return group


def load_commands() -> dict[str, click.Command]:
    """Imports every command, with the help of its arguments and options, by its name.

    >>> sorted(load_commands())[:3]
    ['audit', 'compare', 'epsilon']
    """
    group = make_app()
    assert isinstance(group, click.Group)
    found = {}
    for name, command in group.commands.items():
        found[name] = command.load() if isinstance(command, LazyCommand) else command
        restore_argument_help(found[name])
    return found
