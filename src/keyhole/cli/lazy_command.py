"""Commands that are imported when they are called, but not when they are listed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from functools import cached_property
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, cast

import click
import typer

from keyhole.cli.command import Command
from keyhole.interrupts import INTERRUPTS
from keyhole.plugins import Plugin, find_entry_points

GROUP = "keyhole.commands"
"""The entry point group by which other packages add commands."""
OWN = "keyhole"
"""The name of this distribution and of its package."""
BESIDE = Path(__file__).parents[2]
"""The folder in which the package lies."""


class LazyCommand(click.Command):
    """A command that is imported when it is called. Its summary is read from its source.

    Args:
        name: What the user types.
        function: ``package.module:function``, from which typer makes the command.
        otherwise: The summary of a function that has no docstring.
    """

    def __init__(self, name: str, function: str, otherwise: str = "") -> None:
        super().__init__(name)
        self.function, self.otherwise = function, otherwise

    @cached_property
    def summary(self) -> str:
        """The first paragraph of the function's docstring."""
        return read_summary(*self.function.split(":")) or self.otherwise

    def get_short_help_str(self, limit: int = 45) -> str:
        """The summary, as long as it is."""
        return self.summary

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """Imports the command and reads its arguments."""
        return self.load().make_context(info_name, args, parent, **extra)

    def load(self) -> click.Command:
        """Imports the function and makes a command of it."""
        with INTERRUPTS.leaving_at_once():
            called = self.import_function()
        app = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        app.command(self.name, cls=Command)(called)
        return typer.main.get_command(app)

    def import_function(self) -> Callable[..., object]:
        """Imports the function from which typer makes the command."""
        module, _, function = self.function.partition(":")
        return cast("Callable[..., object]", getattr(importlib.import_module(module), function))


class PluginCommand(LazyCommand):
    """A command that another package adds by an entry point of the group ``keyhole.commands``."""

    def __init__(self, plugin: Plugin) -> None:
        entry = plugin.entry
        super().__init__(plugin.name, f"{entry.module}:{entry.attr}", f"From {plugin.package}.")
        self.plugin = plugin

    def import_function(self) -> Callable[..., object]:
        """Imports the function; raises :class:`KeyholeError` if the other package is broken."""
        return cast("Callable[..., object]", self.plugin.load())


def plugin_commands() -> list[LazyCommand]:
    """Returns the commands that other packages add; imports none of those packages."""
    return [PluginCommand(Plugin("command", each)) for each in find_entry_points(GROUP)]


def commands_beside() -> list[LazyCommand]:
    """Returns the commands of the packages beside a Keyhole that is not installed; imports none.

    An installed Keyhole has entry points. Where it is only on the path, each function of a module
    ``command`` in a package ``keyhole_...`` beside it is a command.
    """
    if any(e.dist is not None and e.dist.name == OWN for e in find_entry_points(GROUP)):
        return []
    found = []
    for file in sorted(BESIDE.glob(f"{OWN}_*/command.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
        module = f"{file.parent.name}.{file.stem}"
        found += [LazyCommand(name, f"{module}:{name}") for name in names if name[0] != "_"]
    return found


def read_summary(module: str, function: str) -> str | None:
    """Reads the first paragraph of a function's docstring, from source that is not run.

    >>> read_summary("keyhole.cli.lazy_command", "plugin_commands")
    'Returns the commands that other packages add; imports none of those packages.'
    """
    spec = find_unimported(module)
    loader = None if spec is None else spec.loader
    try:
        source = getattr(loader, "get_source", lambda _: None)(module) or ""
        body = ast.parse(source).body
    except (ImportError, SyntaxError, ValueError):  # reported where the command is called
        return None
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()) or None
    return None


def find_unimported(module: str) -> ModuleSpec | None:
    """Finds a module; unlike ``importlib.util.find_spec``, imports none of its packages."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    name = first
    for part in rest:
        name = f"{name}.{part}"
        places = None if spec is None else spec.submodule_search_locations
        spec = None if places is None else PathFinder.find_spec(name, places)
    return spec
