"""Parts by name: ``gaussian(sigma=0.01)`` on the command line is ``Gaussian(sigma=0.01)``.

Keyhole's own parts have plain names, those of installed packages the names that their entry points
declare, and any other part is found at ``package.module:Name``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from keyhole.errors import BadValue
from keyhole.lazy import import_address
from keyhole.parameters import construct, parameters, recordable, switched_off, unusual_parameters
from keyhole.plugins import Plugin, Plugins, address_of, article, import_part
from keyhole.spelling import parse_call, spell, unknown

__all__ = ["Registry", "label_of", "name_class", "part_name", "registered_name", "spell_part"]

T = TypeVar("T")

REGISTRIES: list[Registry[Any]] = []
"""Those that are open to others' parts."""


class Registry(Generic[T]):
    """The parts of one kind, by name."""

    def __init__(
        self,
        kind: str,
        members: Mapping[str, str | type[T] | T],
        *,
        base: str | type[Any] | None = None,
        group: str | None = None,
    ) -> None:
        """Names the members.

        Args:
            kind: What they are, for errors: ``attack``.
            members: Keyhole's own parts by name: classes, ready objects, or addresses such as
                ``keyhole.defenses.agp:Agp``, which are imported when the part is first used.
            base: The class that every part extends, or its address; None if only the members are
                known.
            group: The entry points by which packages add more.
        """
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

    def __iter__(self) -> Iterator[type[T]]:
        """Imports and returns Keyhole's own parts."""
        return (self._member(name) for name in self._members)

    def _member(self, name: str) -> Any:
        found = self._members[name]
        return import_address(found) if isinstance(found, str) else found

    def names(self) -> list[str]:
        """Keyhole's own names."""
        return list(self._members)

    def known_names(self) -> list[str]:
        """Keyhole's own names, then those that other packages declare; imports nothing."""
        return [*self._members, *(self._plugins.available() if self._plugins else ())]

    def installed(self) -> list[tuple[Plugin, Any]]:
        """What other packages add; a broken package costs a line in the log."""
        if self._plugins is None:
            return []
        found = self._plugins.loaded()
        for plugin, part in found:
            if not self._can_make(part):
                self._plugins.warn(plugin, f"{self._misfit(plugin.name)} (from {plugin.package})")
        return [(plugin, part) for plugin, part in found if self._can_make(part)]

    def find(self, name: str) -> Any:
        """The part of that name: a class, a function that makes one, or an object."""
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
            raise unknown(self.kind, name, known)

    def __getitem__(self, name: str) -> type[T]:
        """The class of that name."""
        found = self.find(name)
        return cast("type[T]", found if isinstance(found, type) else type(found))

    def parse(self, text: str) -> T:
        """Makes the part that ``text`` names, with the parameters it gives.

        ``package.module:Name`` imports a module and runs its code: see :meth:`parse_builtin`.
        """
        name, values = parse_call(text)
        return self.make(self.find(name), name, values)

    def resolve(self, part: str | T) -> T:
        """A part by its text, or the object itself; raises where it is of another kind."""
        if isinstance(part, str):
            return self.parse(part)
        if isinstance(part, type):
            raise BadValue(f"{self.kind} {part.__name__} is a class: pass {part.__name__}(...)")
        if self.base is not None and not isinstance(part, self.base):
            raise self._misfit(address_of(type(part)))
        return part

    def parse_builtin(self, text: str) -> T:
        """The same of Keyhole's own parts alone: for text that comes from strangers."""
        name, values = parse_call(text)
        if name not in self._members:
            raise unknown(self.kind, name, self._members)
        return self.make(self._member(name), name, values)

    def make(self, found: Any, name: str, values: dict[str, Any]) -> T:
        """An object of what :meth:`find` found; raises where that is of another kind."""
        if self.base is not None and isinstance(found, self.base):
            if values:
                raise BadValue(f"{self.kind} {name} is an object and takes no parameters")
            return cast(T, found)
        if not self._can_make(found):
            raise self._misfit(name)
        made = construct(found, values, f"{self.kind} {name}")
        if self.base is not None and not isinstance(made, self.base):
            raise self._misfit(name)
        return cast(T, made)

    def _can_make(self, found: Any) -> bool:
        """Whether it is a part, a class of parts, or a function, which may make one."""
        if self.base is None or isinstance(found, self.base):
            return True
        return issubclass(found, self.base) if isinstance(found, type) else callable(found)

    def _misfit(self, name: str) -> BadValue:
        base = "" if self.base is None else f"{self.base.__module__}.{self.base.__qualname__}"
        return BadValue(f"{name} is not {article(self.kind)}: it must extend {base}")

    def registered_name(self, kind: type) -> str | None:
        """The plain name of a class; None where it has none."""
        own = vars(kind).get("name")
        if own in self._members and self._member(own) is kind:
            return str(own)
        return None if self._plugins is None else self._plugins.name_of(kind)


def registered_name(kind: type) -> str | None:
    """The plain name of a part's class, Keyhole's own or declared by a package; None: none."""
    if kind.__module__.partition(".")[0] == "keyhole" and "name" in vars(kind):
        return str(vars(kind)["name"])
    open_to_it = [r for r in REGISTRIES if r.base is not None and issubclass(kind, r.base)]
    return next((name for r in open_to_it if (name := r.registered_name(kind))), None)


def name_class(kind: type) -> None:
    """Gives a class of parts that declares no ``name`` the one by which it can be found."""
    if "name" not in vars(kind):
        kind.name = address_of(kind)  # type: ignore[attr-defined]


def part_name(part: object) -> str:
    """What a part is called: its registered name, else the one it declares, else where it is.

    A declared name that one of Keyhole's own parts has does not count.
    """
    kind = type(part)
    registered = registered_name(kind)
    own = vars(kind).get("name")
    if registered is not None or own is None:
        return registered or address_of(kind)
    taken = any(r.base and issubclass(kind, r.base) and own in r.names() for r in REGISTRIES)
    return address_of(kind) if taken else str(own)


def spell_part(part: object) -> str:
    """The text that parses back to a part, with all its parameters."""
    name = registered_name(type(part)) or address_of(type(part))
    return spell(name, parameters(part), off=switched_off(part))


def label_of(part: object) -> str:
    """What tables call a part: its name, with the parameters that are not the usual ones."""
    chosen = unusual_parameters(part)
    return spell(part_name(part), recordable(chosen), off=chosen)
