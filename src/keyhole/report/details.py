"""One thing of the catalogue in detail: what it does, and what its parameters may be."""

from __future__ import annotations

import dataclasses
import inspect
import re
from typing import Any

from pydantic import PydanticUserError, TypeAdapter

from keyhole.attacks import ATTACKS
from keyhole.attacks.membership import MEMBERSHIP
from keyhole.defenses import DEFENSES
from keyhole.errors import UnknownName
from keyhole.metrics.selection import NAMED
from keyhole.models import USER_MODEL
from keyhole.parameters import parameter_hints, parameter_names
from keyhole.registry import Registry
from keyhole.report.catalogue import (
    Entry,
    attack_entry,
    catalogue,
    defense_entry,
    metric_entry,
    part_entry,
    remove_roles,
)
from keyhole.spelling import parse_call, unknown

REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS,
    "membership": MEMBERSHIP,
    "defenses": DEFENSES,
    "metrics": NAMED,
}
DESCRIBE = {"attacks": attack_entry, "defenses": defense_entry, "metrics": metric_entry}
"""What tells of a part, where that is not :func:`part_entry`."""


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
        asked = family if family in entries else USER_MODEL
    elsewhere = room in REGISTRIES and ":" in asked
    if asked not in entries and not elsewhere:
        raise unknown(room.removesuffix("s"), asked, entries)
    if room not in REGISTRIES:
        return entries[asked]
    part = REGISTRIES[room].find(asked)
    entry = entries.get(asked) or DESCRIBE.get(room, part_entry)(asked, part)
    if "parameters" not in entry:
        return entry
    maker = part if callable(part) else type(part)
    return {**entry, "description": description(maker), "allowed": allowed_values(maker)}


def description(kind: Any) -> str:
    """The docstring of a class or a function, without examples.

    A class also tells those of the classes it has parameters from.
    """
    parents = kind.__mro__ if isinstance(kind, type) else ()
    inherited = [k for k in parents if _declares_parameters(k) and k is not kind]
    texts = [inspect.cleandoc(k.__doc__ or "") for k in (kind, *inherited)]
    shortened = (re.sub(r"^(>>>|Args:|\.\. ).*", "", t, flags=re.S | re.M) for t in texts)
    return "\n\n".join(remove_roles(text).strip() for text in shortened if text.strip())


def _declares_parameters(kind: type) -> bool:
    own = inspect.get_annotations(kind)
    return dataclasses.is_dataclass(kind) and any(f.name in own for f in dataclasses.fields(kind))


def allowed_values(maker: Any) -> dict[str, str]:
    """What each parameter of a class or a function may be, in words."""
    hints = parameter_hints(maker)
    return {name: in_words(schema_of(hints.get(name, Any))) for name in parameter_names(maker)}


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of an annotation; empty where that has none, as a tensor's."""
    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:
        return {}


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
