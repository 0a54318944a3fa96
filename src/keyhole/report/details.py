"""Describes one part in detail: what it does, and what its parameters may be."""

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
    LISTS,
    NAMES,
    Entry,
    attack_entry,
    defense_entry,
    metric_entry,
    part_entry,
    remove_roles,
)
from keyhole.spelling import parse_call, unknown_name

REGISTRIES: dict[str, Registry[Any]] = {
    "attacks": ATTACKS,
    "membership": MEMBERSHIP,
    "defenses": DEFENSES,
    "metrics": NAMED,
}
DESCRIBE = {"attacks": attack_entry, "defenses": defense_entry, "metrics": metric_entry}
"""The functions that describe a part, where it is not :func:`part_entry`."""


def list_entries(kind: str) -> list[Entry]:
    """Lists every part of one kind.

    Args:
        kind: ``attacks``, ``defenses``, ``models`` or another that ``keyhole list`` names.
    """
    check_kind(kind)
    return LISTS[kind]()


def check_kind(kind: str) -> None:
    """Raises if there is no such kind of parts; the error says where a part of that name is."""
    if kind in LISTS:
        return
    holder = next((each for each, names in NAMES.items() if kind in names()), None)
    if holder is not None:
        where = f"keyhole list {holder} {kind}"
        raise UnknownName(f"{kind!r} is one of the {holder}: write `{where}`")
    raise unknown_name("part of the list", kind, LISTS)


def describe_entry(kind: str, text: str) -> Entry:
    """Describes one part: its ``description``, and the ``allowed`` values of its parameters.

    Args:
        kind: The kind, as :func:`list_entries` takes it.
        text: The part's name, or the part as a plan writes it: ``dp(epsilon=5)``.
    """
    check_kind(kind)
    asked, known = parse_call(text)[0], NAMES[kind]()
    if kind == "models" and asked not in known and ":" in asked:
        family = f"{asked.partition(':')[0]}:NAME"
        asked = family if family in known else USER_MODEL
    elsewhere = kind in REGISTRIES and ":" in asked
    if asked not in known and not elsewhere:
        raise unknown_name(kind.removesuffix("s"), asked, known)
    if kind not in REGISTRIES:
        return next(entry for entry in list_entries(kind) if entry["name"] == asked)
    part = REGISTRIES[kind].find(asked)
    listed = {entry["name"]: entry for entry in list_entries(kind)}
    entry = listed.get(asked) or DESCRIBE.get(kind, part_entry)(asked, part)
    if "parameters" not in entry:
        return entry
    maker = part if callable(part) else type(part)
    return {**entry, "description": describe(maker), "allowed": allowed_values(maker)}


def describe(kind: Any) -> str:
    """Returns the docstring of a class or a function, without examples.

    For a class, those of the classes from which it inherits parameters follow.
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
    """Describes the values that each parameter of a class or a function may have."""
    hints = parameter_hints(maker)
    schemas = {name: schema_of(hints.get(name, Any)) for name in parameter_names(maker)}
    return {name: describe_values(schema) for name, schema in schemas.items()}


def schema_of(hint: Any) -> dict[str, Any]:
    """Returns the JSON schema of an annotation; empty if it has none, as for tensors."""
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


def describe_values(about: dict[str, Any]) -> str:
    """Describes the values that a JSON schema allows.

    >>> describe_values({"type": "number", "exclusiveMinimum": 0, "maximum": 1})
    'a number above 0, at most 1'
    >>> describe_values({"anyOf": [{"type": "integer"}, {"type": "null"}]})
    'a whole number, or None'
    """
    if "anyOf" in about:
        return ", or ".join(describe_values(each) for each in about["anyOf"])
    if "enum" in about:
        return " or ".join(repr(value) for value in about["enum"])
    bounds = [words.format(about[key]) for key, words in WORDS.items() if key in about]
    return " ".join([TYPES.get(about.get("type", ""), "a value"), ", ".join(bounds)]).strip()
