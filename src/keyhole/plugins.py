"""Finds parts that others wrote: at ``package.module:Name``, or by entry points of packages."""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from keyhole.errors import UnknownName, one_line
from keyhole.spelling import shorten

log = logging.getLogger("keyhole")


def import_part(address: str, kind: str) -> Any:
    """Imports the object at ``package.module:Name``, also from the current folder.

    Args:
        address: Where it is.
        kind: What it should be, for errors: ``attack``.
    """
    module, _, name = address.partition(":")
    if not all(part.isidentifier() for part in module.split(".")):
        raise UnknownName(f"{shorten(address)} is no {kind}: write package.module:Name")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # a stranger's module may raise anything
        raise UnknownName(
            f"cannot import {module!r} ({one_line(error)}): {with_article(kind)} of your own is "
            "named package.module:Name and must be importable from here"
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UnknownName(f"{module} has nothing to call by the name {name!r}")
        found = getattr(found, part)
    return found


def with_article(kind: str) -> str:
    """Returns a noun with its article.

    >>> with_article("attack"), with_article("model")
    ('an attack', 'a model')
    """
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def address_of(kind: type) -> str:
    """Returns the address of a class, by which :func:`import_part` finds it.

    >>> address_of(EntryPoint)
    'importlib.metadata:EntryPoint'
    """
    return f"{kind.__module__}:{kind.__qualname__}"


@dataclass(frozen=True)
class Plugin:
    """A part that an installed package declares."""

    kind: str
    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def package(self) -> str:
        """The package and its version."""
        dist = self.entry.dist
        return self.entry.module if dist is None else f"{dist.name} {dist.version}"

    def load(self) -> Any:
        """Imports the part; raises :class:`UnknownName` where its package is broken."""
        try:
            return self.entry.load()
        except Exception as error:  # a stranger's module may raise anything
            raise UnknownName(
                f"{self.kind} {self.name!r} of the package {self.package} cannot be loaded "
                f"({type(error).__name__}: {one_line(error)}): repair that package, or remove it"
            ) from error

    def declares(self, kind: type) -> bool:
        """Whether the part is this class; a part that cannot be loaded is not."""
        try:
            return self.load() is kind
        except UnknownName:  # reported where the part is asked for
            return False


@functools.cache
def find_entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Returns the entry points of all installed packages in a group; imports none of them."""
    found = entry_points(group=group)
    return tuple(sorted(found, key=lambda e: (e.name, e.dist.name if e.dist else "")))


class Plugins:
    """The parts of one kind that installed packages add. Each is imported when it is needed."""

    def __init__(self, kind: str, group: str, builtin: Collection[str]) -> None:
        """Describes where to look.

        Args:
            kind: What these parts are: ``attack``.
            group: The entry points' group: ``keyhole.attacks``.
            builtin: Keyhole's own names, which no package can take.
        """
        self.kind, self.group, self.builtin = kind, group, builtin
        self._warned: set[EntryPoint] = set()

    def available(self) -> dict[str, Plugin]:
        """Returns the plug-ins by name; logs, once, those whose name is taken."""
        found: dict[str, Plugin] = {}
        for entry in find_entry_points(self.group):
            plugin = Plugin(self.kind, entry)
            if entry.name not in self.builtin and entry.name not in found:
                found[entry.name] = plugin
                continue
            owner = "Keyhole" if entry.name in self.builtin else found[entry.name].package
            self.warn(
                plugin,
                f"{self.kind} {entry.name!r} of the package {plugin.package} is left out, because "
                f"{owner} has one of that name: ask for it by {entry.value}",
            )
        return found

    def warn(self, plugin: Plugin, message: str) -> None:
        """Logs what is wrong with a plug-in, once."""
        if plugin.entry not in self._warned:
            self._warned.add(plugin.entry)
            log.warning("keyhole: %s", message)

    def find(self, name: str) -> Any:
        """Imports the part of that name; returns None where no package has it."""
        plugin = self.available().get(name)
        return None if plugin is None else plugin.load()

    def load_all(self) -> list[tuple[Plugin, Any]]:
        """Imports every plug-in; one that cannot be imported is logged and left out."""
        found = []
        for plugin in self.available().values():
            try:
                found.append((plugin, plugin.load()))
            except UnknownName as error:
                self.warn(plugin, str(error))
        return found

    def name_of(self, kind: type) -> str | None:
        """Returns the name by which a package declares a class; None where none does."""
        root = kind.__module__.partition(".")[0]
        for plugin in self.available().values():
            if plugin.entry.module.partition(".")[0] == root and plugin.declares(kind):
                return plugin.name
        return None
