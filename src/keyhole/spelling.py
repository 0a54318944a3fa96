"""Names with parameters as people write them: ``gaussian(sigma=0.01)``."""

from __future__ import annotations

import ast
import cmath
import difflib
import itertools
import math
import warnings
from collections.abc import Iterable
from typing import Any

from keyhole.errors import BadValue, UnknownName
from keyhole.untrusted import DIGITS

__all__ = [
    "check_finite",
    "expand_lists",
    "parse_call",
    "shorten",
    "spell",
    "split_names",
    "split_outside_brackets",
    "unknown_name",
]

LONGEST = 4000
"""Letters of a name with its parameters."""
SHOWN = 120
"""Letters of it that an error repeats."""
MOST_VALUES = 100_000
"""Combinations of the values that a name lists."""


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Returns the error for a name that does not exist; it suggests similar names.

    Args:
        kind: What the name should have named: ``defense``.
        name: What was written.
        known: The names that exist.

    >>> str(unknown_name("defense", "gausian", ["gaussian", "pruning"]))
    "unknown defense 'gausian': did you mean gaussian? Known: gaussian, pruning"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:SHOWN], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    listed = ", ".join(names) if len(names) <= 24 else f"{', '.join(names[:12])}, ..."
    return UnknownName(f"unknown {kind} {shorten(name)}: {hint}Known: {listed}")


def split_names(text: str, *, option: str = "") -> list[str]:
    """Splits a text at the commas outside brackets; raises where it holds no name.

    Args:
        text: What was written.
        option: The option that it was written for, for errors.

    >>> split_names("none, gaussian(sigma=0.1, clip=1),dropout")
    ['none', 'gaussian(sigma=0.1, clip=1)', 'dropout']
    """
    parts = split_outside_brackets(text, ",")
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        where = f"{option}: " if option else ""
        raise BadValue(f"{where}{text!r} names nothing: write names, separated by commas")
    return names


def split_outside_brackets(text: str, mark: str) -> list[str]:
    """Splits a text at a mark, except inside brackets.

    Args:
        text: What was written.
        mark: One letter.

    >>> split_outside_brackets("a(1+2)+b", "+")
    ['a(1+2)', 'b']
    """
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == mark and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Reads ``name`` or ``name(key=value, ...)`` as a name and its parameters.

    Args:
        text: What was written; values are Python literals, and numbers are finite.

    >>> parse_call("gaussian(sigma=1e-3)")
    ('gaussian', {'sigma': 0.001})
    """
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    if len(text) > LONGEST:
        raise BadValue(f"{shorten(text)} is too long: {len(text):,} of {LONGEST:,} letters")
    try:
        values = _literals(f"f({rest}")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = str(error) if isinstance(error, OutOfBounds) else _HOW
        raise BadValue(f"cannot read {shorten(text)}: {why}") from None
    return name.strip(), values


def expand_lists(text: str) -> list[str]:
    """Returns one name for each combination of the values that a name lists in square brackets.

    A name without a list is returned as it was written. A tuple is one value, not a list.

    Args:
        text: What was written: ``name``, or ``name(key=value, key=[value, value], ...)``.

    >>> expand_lists("topk(k=[.1, .01])")
    ['topk(k=0.1)', 'topk(k=0.01)']
    >>> expand_lists("dropout(p=.50)")
    ['dropout(p=.50)']
    >>> expand_lists("topk(k=[.1, .01]) + half")
    ['topk(k=0.1) + half', 'topk(k=0.01) + half']
    """
    parts = split_outside_brackets(text, "+")
    if len(parts) > 1:
        listed = [expand_lists(part) for part in parts]
        check_count(listed, text)
        found = [" + ".join(each) for each in itertools.product(*listed)]
        return found if len(found) > 1 else [text.strip()]
    name, values = parse_call(text)
    for key, value in values.items():
        if value == []:
            raise BadValue(f"{key} of {shorten(text)} is an empty list: write one value or more")
    if not any(isinstance(value, list) for value in values.values()):
        return [text.strip()]
    choices = [value if isinstance(value, list) else [value] for value in values.values()]
    check_count(choices, text)
    return [
        spell(name, dict(zip(values, chosen, strict=True)), off=values)
        for chosen in itertools.product(*choices)
    ]


def check_count(choices: Iterable[list[Any]], text: str) -> None:
    """Raises where lists have too many combinations to write down."""
    if math.prod(map(len, choices)) > MOST_VALUES:
        raise BadValue(
            f"{shorten(text)} lists more than {MOST_VALUES:,} combinations: list fewer values"
        )


_HOW = "write it as name(parameter=value, ...)"


class OutOfBounds(ValueError):
    """A number that is too large; the message is for the user."""


def shorten(value: object) -> str:
    """Returns a value as Python spells it, cut where it is long.

    Args:
        value: What was written.

    >>> shorten("a" * 500)[-20:]
    "aaaaaaaaaaaaaaaa'..."
    """
    if isinstance(value, str):
        return repr(value[:SHOWN]) + "..." * (len(value) > SHOWN)
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of too many digits, lists in lists
        return f"a {type(value).__name__} that is too long to show"
    return text[:SHOWN] + "..." * (len(text) > SHOWN)


def _literals(call: str) -> dict[str, Any]:
    """Reads the named arguments of a call; raises what Python raises where it is not one."""
    with warnings.catch_warnings(action="ignore"):  # about odd escapes, which are data here
        parsed = ast.parse(call, mode="eval").body
    if not isinstance(parsed, ast.Call) or parsed.args or not isinstance(parsed.func, ast.Name):
        raise ValueError
    names = [keyword.arg for keyword in parsed.keywords]
    if None in names or len(set(names)) < len(names):
        raise ValueError
    values = {str(k.arg): _read_literal(k.value) for k in parsed.keywords}
    for name, value in values.items():
        check_finite(name, value)
    return values


def _read_literal(node: ast.expr) -> Any:
    """Reads a Python literal; true and false may be written as in TOML."""
    if isinstance(node, ast.Name) and node.id in ("true", "false"):
        return node.id == "true"
    return ast.literal_eval(node)


def check_finite(name: str, value: object) -> None:
    """Raises ValueError for infinite numbers, and for integers of 40 digits or more.

    Args:
        name: What the value is of, for errors.
        value: A number, or a list, tuple, set or dictionary of values.
    """
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple | set):
        for part in value:
            check_finite(name, part)
    elif isinstance(value, float | complex) and not cmath.isfinite(value):
        raise OutOfBounds(f"{name} is infinite")
    elif isinstance(value, int) and abs(value) >= 10**DIGITS:
        raise OutOfBounds(f"{name} has more than {DIGITS} digits")


def spell(name: str, values: dict[str, Any], *, off: Iterable[str] = ()) -> str:
    """Writes a name and its parameters so that :func:`parse_call` reads them back.

    Args:
        name: The name.
        values: The parameters; those that are None are left out.
        off: Names of parameters that are written even where they are None.

    >>> spell("gaussian", {"sigma": 0.001, "clip": None})
    'gaussian(sigma=0.001)'
    """
    given = {key: value for key, value in values.items() if value is not None or key in off}
    inner = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{name}({inner})" if inner else name
