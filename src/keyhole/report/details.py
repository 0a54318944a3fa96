"""One thing of the catalogue in detail: what it does, and what its parameters may be."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from pydantic import TypeAdapter

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.defenses import DEFENSES
from keyhole.errors import UnknownName
from keyhole.registry import Registry, parse_call, unknown
from keyhole.report.catalogue import OWN_MODEL, Entry, catalogue

CLASSES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS,
    "membership": MEMBERSHIP,
    "defenses": DEFENSES,
}


def entries_of(room: str) -> list[Entry]:
    """Everything in one room; an unknown room is refused with the nearest names."""
    rooms = catalogue()
    if room in rooms:
        return rooms[room]
    holders = [r for r, entries in rooms.items() if room in (e["name"] for e in entries)]
    if holders:
        where = f"keyhole list {holders[0]} {room}"
        raise UnknownName(f"{room!r} is one of the {holders[0]}: write `{where}`")
    raise unknown("part of the list", room, rooms)


def entry_of(room: str, name: str) -> Entry:
    """One entry with its ``description``, and with ``allowed`` values of its parameters."""
    entries = {entry["name"]: entry for entry in entries_of(room)}
    asked = parse_call(name)[0]
    if room == "models" and asked not in entries and ":" in asked:
        family = f"{asked.partition(':')[0]}:NAME"
        asked = family if family in entries else OWN_MODEL
    if asked not in entries:
        raise unknown(room.removesuffix("s"), asked, entries)
    entry = entries[asked]
    if room not in CLASSES:
        return entry
    kind = CLASSES[room][asked]
    return {**entry, "description": description(kind), "allowed": allowed_values(kind)}


def description(kind: type) -> str:
    """A class's docstring and those of the classes it has parameters from, without examples."""
    inherited = [k for k in kind.__mro__ if _declares_parameters(k) and k is not kind]
    texts = [inspect.cleandoc(k.__doc__ or "") for k in (kind, *inherited)]
    shortened = (re.sub(r"^(>>>|Args:|\.\. ).*", "", t, flags=re.S | re.M) for t in texts)
    return "\n\n".join(_without_roles(text).strip() for text in shortened if text.strip())


def _declares_parameters(kind: type) -> bool:
    own = inspect.get_annotations(kind)
    return dataclasses.is_dataclass(kind) and any(f.name in own for f in dataclasses.fields(kind))


def _without_roles(text: str) -> str:
    """Removes Sphinx's marks.

    >>> _without_roles("``sigma`` as in :mod:`keyhole.attacks.noise`")
    '`sigma` as in `keyhole.attacks.noise`'
    """
    return re.sub(r":\w+:`([^`]*)`", r"`\1`", text).replace("``", "`")


def allowed_values(kind: type) -> dict[str, str]:
    """What each parameter may be, in words."""
    schema = TypeAdapter(kind).json_schema()
    return {name: in_words(about) for name, about in schema.get("properties", {}).items()}


WORDS = {
    "exclusiveMinimum": "above {}",
    "minimum": "at least {}",
    "exclusiveMaximum": "below {}",
    "maximum": "at most {}",
    "multipleOf": "a multiple of {}",
}
TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "True or False",
    "null": "None",
    "array": "several values",
}


def in_words(about: dict[str, Any]) -> str:
    """The values that a JSON schema allows.

    >>> in_words({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    'a number above 0, at most 1'
    >>> in_words({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    'a whole number, or None'
    """
    if "anyOf" in about:
        return ", or ".join(in_words(each) for each in about["anyOf"])
    if "enum" in about:
        return " or ".join(repr(value) for value in about["enum"])
    bounds = [words.format(about[key]) for key, words in WORDS.items() if key in about]
    return " ".join([TYPES.get(about.get("type", ""), "a value"), ", ".join(bounds)]).strip()
