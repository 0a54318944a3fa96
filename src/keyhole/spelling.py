"""Names with parameters as people write them: ``gaussian(sigma=0.01)``."""

from __future__ import annotations

import ast
import cmath
import difflib
import warnings
from collections.abc import Iterable
from typing import Any

from keyhole.errors import BadValue, UnknownName
from keyhole.untrusted import DIGITS


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """The error for a name that does not exist; it suggests the nearest ones.

    >>> str(unknown("defense", "gausian", ["gaussian", "pruning"]))
    "unknown defense 'gausian': did you mean gaussian? Known: gaussian, pruning"
    """
    names = sorted(known)
    near = difflib.get_close_matches(name[:SHOWN], names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    listed = ", ".join(names) if len(names) <= 24 else f"{', '.join(names[:12])}, ..."
    return UnknownName(f"unknown {kind} {shortened(name)}: {hint}Known: {listed}")


def split_names(text: str, *, option: str = "") -> list[str]:
    """Splits at the commas that stand outside brackets; a text without any name is refused.

    >>> split_names("none, gaussian(sigma=0.1, clip=1),dropout")
    ['none', 'gaussian(sigma=0.1, clip=1)', 'dropout']
    """
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        where = f"{option}: " if option else ""
        raise BadValue(f"{where}{text!r} names nothing: write names, separated by commas")
    return names


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Reads ``name`` or ``name(key=value, ...)``; values are Python literals, numbers finite.

    >>> parse_call("gaussian(sigma=1e-3)")
    ('gaussian', {'sigma': 0.001})
    """
    name, bracket, rest = text.strip().partition("(")
    if not bracket:
        return name, {}
    if len(text) > LONGEST:
        raise BadValue(f"{shortened(text)} is too long: {len(text):,} of {LONGEST:,} letters")
    try:
        values = _literals(f"f({rest}")
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        why = str(error) if isinstance(error, OutOfBounds) else _HOW
        raise BadValue(f"cannot read {shortened(text)}: {why}") from None
    return name.strip(), values


LONGEST = 4000
"""Letters of one name with its parameters."""
SHOWN = 120
"""Letters of it that an error repeats."""
_HOW = "write it as name(parameter=value, ...)"


class OutOfBounds(ValueError):
    """A number that nothing can compute with; the message is for the user."""


def shortened(value: object) -> str:
    """What was written, as Python spells it, cut where it is long.

    >>> shortened("a" * 500)[-20:]
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
    """The named arguments of a call; raises what Python raises where there is none."""
    with warnings.catch_warnings(action="ignore"):  # on odd escapes, which are data here
        parsed = ast.parse(call, mode="eval").body
    if not isinstance(parsed, ast.Call) or parsed.args or not isinstance(parsed.func, ast.Name):
        raise ValueError
    names = [keyword.arg for keyword in parsed.keywords]
    if None in names or len(set(names)) < len(names):
        raise ValueError
    values = {str(k.arg): ast.literal_eval(k.value) for k in parsed.keywords}
    for name, value in values.items():
        check_finite(name, value)
    return values


def check_finite(name: str, value: object) -> None:
    """Raises :class:`OutOfBounds` for infinite numbers and for integers of 40 digits and more."""
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
    """The text that parses back to this thing; None is said only of those in ``off``.

    >>> spell("gaussian", {"sigma": 0.001, "clip": None})
    'gaussian(sigma=0.001)'
    """
    told = {key: value for key, value in values.items() if value is not None or key in off}
    inner = ", ".join(f"{key}={value!r}" for key, value in told.items())
    return f"{name}({inner})" if inner else name
