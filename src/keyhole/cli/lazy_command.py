"""Commands that are imported when they are called, and not to be listed."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, cast

import click
import typer

from keyhole.cli.command import Command
from keyhole.interrupts import INTERRUPTS
from keyhole.plugins import Plugin, declared

GROUP = "keyhole.commands"
"""The entry point group by which other packages add commands."""


class LazyCommand(click.Command):
    """A command by its name, its one-line summary and the function that it calls."""

    def __init__(self, name: str, function: str, summary: str) -> None:
        """Describes a command.

        Args:
            name: What the user types.
            function: ``package.module:function``, which typer makes the command of.
            summary: What ``keyhole --help`` tells of it.
        """
        super().__init__(name, short_help=summary)
        self.function, self.summary = function, summary

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
        """The function that typer makes the command of."""
        module, _, function = self.function.partition(":")
        return cast("Callable[..., object]", getattr(importlib.import_module(module), function))


class PluginCommand(LazyCommand):
    """A command that another package adds by an entry point of the group ``keyhole.commands``."""

    def __init__(self, plugin: Plugin) -> None:
        found = plugin.entry
        summary = read_summary(found.module, found.attr) or f"From {plugin.package}."
        super().__init__(found.name, found.value, summary)
        self.plugin = plugin

    def import_function(self) -> Callable[..., object]:
        """The function; raises :class:`KeyholeError` where the other package is broken."""
        return cast("Callable[..., object]", self.plugin.load())


def plugin_commands() -> list[LazyCommand]:
    """The commands that other packages add; none of those packages is imported."""
    return [PluginCommand(Plugin("command", each)) for each in declared(GROUP)]


def read_summary(module: str, function: str) -> str | None:
    """The first paragraph of a function's docstring, from its source, which is not run.

    >>> read_summary("keyhole.cli.lazy_command", "plugin_commands")
    'The commands that other packages add; none of those packages is imported.'
    """
    spec = find_unimported(module)
    loader = None if spec is None else spec.loader
    try:
        source = getattr(loader, "get_source", lambda _: None)(module) or ""
        body = ast.parse(source).body
    except (ImportError, SyntaxError, ValueError):  # told where the command is called
        return None
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()) or None
    return None


def find_unimported(module: str) -> ModuleSpec | None:
    """Where a module is; unlike ``importlib.util.find_spec`` without importing its packages."""
    first, *rest = module.split(".")
    spec = importlib.util.find_spec(first)
    name = first
    for part in rest:
        name = f"{name}.{part}"
        places = None if spec is None else spec.submodule_search_locations
        spec = None if places is None else PathFinder.find_spec(name, places)
    return spec
