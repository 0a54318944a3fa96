"""Parts by name: ``gaussian(sigma=0.01)`` on the command line is ``Gaussian(sigma=0.01)``.

Keyhole's own parts have plain names, those of installed packages the names that their entry points
declare, and any other part is found at ``package.module:Name``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from keyhole.errors import BadValue
from keyhole.lazy import import_address
from keyhole.parameters import (
    construct,
    find_disabled,
    make_recordable,
    read_parameters,
    unusual_parameters,
)
from keyhole.plugins import Plugin, Plugins, address_of, import_part, with_article
from keyhole.spelling import parse_call, spell, unknown_name

__all__ = ["Registry", "label_of", "name_class", "part_name", "registered_name", "spell_part"]

T = TypeVar("T")

REGISTRIES: list[Registry[Any]] = []
"""The registries that accept parts of other packages."""


class Registry(Generic[T]):
    """The parts of one kind, by name.

    Args:
        kind: What they are, for errors: ``attack``.
        members: Keyhole's own parts by name: classes, ready objects, or addresses such as
            ``keyhole.defenses.agp:Agp``, which are imported when the part is first used.
        base: The class that every part extends, or its address; None if only the members are
            known.
        group: The entry points by which packages add more.
    """

    def __init__(
        self,
        kind: str,
        members: Mapping[str, str | type[T] | T],
        *,
        base: str | type[Any] | None = None,
        group: str | None = None,
    ) -> None:
        self.kind, self._base = kind, base
        self._members = dict(members)
        self._plugins = None if group is None else Plugins(kind, group, self._members)
        if base is not None:
            REGISTRIES.append(self)

    @property
    def base(self) -> type[Any] | None:
        """The class that every part extends."""
        if isinstance(self._base, str):
            self._base = cast("type[Any]", import_address(self._base))
        return self._base

    def takes(self, kind: type) -> bool:
        """Returns whether a class extends the base class; imports nothing.

        Args:
            kind: The class. If it extends the base class, that is imported already.
        """
        if isinstance(self._base, str) and self._base.partition(":")[0] not in sys.modules:
            return False
        return self.base is not None and issubclass(kind, self.base)

    def __iter__(self) -> Iterator[type[T]]:
        """Imports and returns Keyhole's own parts."""
        return (self._member(name) for name in self._members)

    def _member(self, name: str) -> Any:
        found = self._members[name]
        return import_address(found) if isinstance(found, str) else found

    def names(self) -> list[str]:
        """Returns the names of Keyhole's own parts."""
        return list(self._members)

    def known_names(self) -> list[str]:
        """Returns Keyhole's own names, then those that packages declare; imports nothing."""
        return [*self._members, *(self._plugins.available() if self._plugins else ())]

    def load_installed(self) -> list[tuple[Plugin, Any]]:
        """Imports the parts that other packages add; a broken one is logged and left out."""
        if self._plugins is None:
            return []
        found = self._plugins.load_all()
        for plugin, part in found:
            if not self._can_make(part):
                self._plugins.warn(
                    plugin, f"{self._misfit_error(plugin.name)} (from {plugin.package})"
                )
        return [(plugin, part) for plugin, part in found if self._can_make(part)]

    def find(self, name: str) -> Any:
        """Imports the part of that name: a class, a function that makes one, or an object.

        Args:
            name: Its name or address, without parameters.
        """
        if name in self._members:
            return self._member(name)
        if self._is_address(name):
            return import_part(name, self.kind)
        self._check_known(name)
        assert self._plugins is not None
        return self._plugins.find(name)

    def check_name(self, text: str) -> None:
        """Raises what :meth:`parse` raises for an unknown name; imports nothing.

        Args:
            text: A part as a user writes it: ``gaussian(sigma=0.01)``.
        """
        name, _ = parse_call(text)
        if not self._is_address(name):
            self._check_known(name)

    def _is_address(self, name: str) -> bool:
        return ":" in name and self._base is not None

    def _check_known(self, name: str) -> None:
        known = self.known_names()
        if name not in known:
            raise unknown_name(self.kind, name, known)

    def __getitem__(self, name: str) -> type[T]:
        """The class of that name."""
        found = self.find(name)
        return cast("type[T]", found if isinstance(found, type) else type(found))

    def parse(self, text: str) -> T:
        """Makes the part that a text names, with the parameters that it gives.

        ``package.module:Name`` imports a module and runs its code: see :meth:`parse_builtin`.

        Args:
            text: A part as a user writes it: ``gaussian(sigma=0.01)``.
        """
        name, values = parse_call(text)
        return self.make(self.find(name), name, values)

    def resolve(self, part: str | T) -> T:
        """Makes the part that a text names; returns an object of this kind as it is.

        Args:
            part: A text, or an object.
        """
        if isinstance(part, str):
            return self.parse(part)
        if isinstance(part, type):
            raise BadValue(f"{self.kind} {part.__name__} is a class: pass {part.__name__}(...)")
        if self.base is not None and not isinstance(part, self.base):
            raise self._misfit_error(address_of(type(part)))
        return part

    def parse_builtin(self, text: str) -> T:
        """Makes one of Keyhole's own parts: for text that comes from strangers.

        Args:
            text: A part as :meth:`parse` reads it, but no address.
        """
        name, values = parse_call(text)
        if name not in self._members:
            raise unknown_name(self.kind, name, self._members)
        return self.make(self._member(name), name, values)

    def make(self, found: Any, name: str, values: dict[str, Any]) -> T:
        """Makes an object of what :meth:`find` found; raises where that is of another kind.

        Args:
            found: A class, a function, or an object.
            name: What it was asked for by, for errors.
            values: Its parameters by name.
        """
        if self.base is not None and isinstance(found, self.base):
            if values:
                raise BadValue(f"{self.kind} {name} is an object and takes no parameters")
            return cast(T, found)
        if not self._can_make(found):
            raise self._misfit_error(name)
        made = construct(found, values, f"{self.kind} {name}")
        if self.base is not None and not isinstance(made, self.base):
            raise self._misfit_error(name)
        return cast(T, made)

    def _can_make(self, found: Any) -> bool:
        """Whether it is a part, a class of parts, or a function, which may make one."""
        if self.base is None or isinstance(found, self.base):
            return True
        return issubclass(found, self.base) if isinstance(found, type) else callable(found)

    def _misfit_error(self, name: str) -> BadValue:
        base = "" if self.base is None else f"{self.base.__module__}.{self.base.__qualname__}"
        return BadValue(f"{name} is not {with_article(self.kind)}: it must extend {base}")

    def registered_name(self, kind: type) -> str | None:
        """Returns the registered name of a class; None where it has none.

        Args:
            kind: The class.
        """
        own = vars(kind).get("name")
        if own in self._members and self._member(own) is kind:
            return str(own)
        return None if self._plugins is None else self._plugins.name_of(kind)


def registered_name(kind: type) -> str | None:
    """Returns the name of a part's class, Keyhole's own or declared by a package, or None.

    Args:
        kind: The class.
    """
    if kind.__module__.partition(".")[0] == "keyhole" and "name" in vars(kind):
        return str(vars(kind)["name"])
    open_to_it = [r for r in REGISTRIES if r.takes(kind)]
    return next((name for r in open_to_it if (name := r.registered_name(kind))), None)


def name_class(kind: type) -> None:
    """Sets the ``name`` of a class of parts that declares none to its address.

    Args:
        kind: The class.
    """
    if "name" not in vars(kind):
        kind.name = address_of(kind)  # type: ignore[attr-defined]


def part_name(part: object) -> str:
    """Returns a part's registered name, or else the name that it declares, or else its address.

    A declared name that one of Keyhole's own parts has does not count.

    Args:
        part: The part.
    """
    kind = type(part)
    registered = registered_name(kind)
    own = vars(kind).get("name")
    if registered is not None or own is None:
        return registered or address_of(kind)
    taken = any(r.takes(kind) and own in r.names() for r in REGISTRIES)
    return address_of(kind) if taken else str(own)


def spell_part(part: object) -> str:
    """Returns the text that :meth:`Registry.parse` reads back, with all parameters.

    Args:
        part: The part.
    """
    name = registered_name(type(part)) or address_of(type(part))
    return spell(name, read_parameters(part), off=find_disabled(part))


def label_of(part: object) -> str:
    """Returns what tables call a part: its name, and the parameters that differ from defaults.

    Args:
        part: The part.
    """
    chosen = unusual_parameters(part)
    return spell(part_name(part), make_recordable(chosen), off=chosen)
