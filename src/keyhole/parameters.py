"""The parameters of a part: what its constructor takes, and what an object has.

A part is a dataclass, plain or of pydantic, or a class that keeps each argument of its constructor
as an attribute of the same name.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError
from pydantic.dataclasses import is_pydantic_dataclass

from keyhole.errors import BadValue, KeyholeError, one_line
from keyhole.spelling import shorten, unknown_name

BAD_VALUES = (TypeError, ValueError, AssertionError, LookupError, ArithmeticError)
"""What a constructor raises where it is given values that it cannot take."""
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def read_parameters(thing: object) -> dict[str, Any]:
    """Returns the hyperparameters of an object by name; a class has none.

    Raises :class:`BadValue` where a class does not keep what its constructor takes.
    """
    if isinstance(thing, type):
        return {}
    names = parameter_names(type(thing))
    for name in names:
        if not hasattr(thing, name):
            raise BadValue(
                f"{type(thing).__name__} does not keep its parameter {name!r}: set self.{name} in "
                "its constructor, or make it a dataclass"
            )
    return {name: getattr(thing, name) for name in names}


def parameter_names(maker: Callable[..., Any]) -> list[str]:
    """Returns the parameters that a class or a function takes by name."""
    if isinstance(maker, type) and dataclasses.is_dataclass(maker):
        return [field.name for field in dataclasses.fields(maker) if field.init]
    return [name for name, each in read_signature(maker).items() if each.kind in NAMED]


def read_signature(maker: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Returns the parameters that Python knows; it knows none of C code."""
    try:
        return dict(inspect.signature(maker).parameters)
    except (TypeError, ValueError):
        return {}


def default_parameters(maker: Callable[..., Any]) -> dict[str, Any]:
    """Returns the defaults of parameters; those that must be given are absent.

    >>> default_parameters(lambda sigma, clip=1.0: None)
    {'clip': 1.0}
    """
    if not (isinstance(maker, type) and dataclasses.is_dataclass(maker)):
        found = read_signature(maker).items()
        return {name: each.default for name, each in found if each.default is not each.empty}
    usual = {}
    for field in dataclasses.fields(maker):
        if field.init and field.default is not dataclasses.MISSING:
            usual[field.name] = field.default
        elif field.init and field.default_factory is not dataclasses.MISSING:
            usual[field.name] = field.default_factory()
    return usual


def unusual_parameters(thing: object) -> dict[str, Any]:
    """Returns the hyperparameters of an object that differ from their defaults."""
    usual = default_parameters(type(thing))
    return {
        name: value
        for name, value in read_parameters(thing).items()
        if name not in usual or values_differ(value, usual[name])
    }


def values_differ(one: object, other: object) -> bool:
    """Whether two values differ; arrays count as different."""
    try:
        return bool(one != other)
    except (RuntimeError, ValueError):
        return True


def find_disabled(thing: object) -> set[str]:
    """Returns the hyperparameters that are None though their default is not."""
    usual = default_parameters(type(thing))
    values = read_parameters(thing).items()
    return {name for name, value in values if value is None and usual.get(name, 0) is not None}


def make_recordable(values: dict[str, Any]) -> dict[str, Any]:
    """Replaces each value that JSON cannot hold by a short text.

    >>> make_recordable({"sigma": 0.1, "window": range(3)})
    {'sigma': 0.1, 'window': 'range(0, 3)'}
    """
    return {name: value if is_json(value) else shorten(value) for name, value in values.items()}


def is_json(value: object) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def construct(maker: Callable[..., Any], values: dict[str, Any], what: str) -> Any:
    """Calls ``maker`` with ``values``; an unknown name or a wrong value is an error of one line.

    Args:
        maker: A class or a function.
        values: Arguments by name.
        what: What is made, for errors: ``defense gaussian``.
    """
    names = parameter_names(maker)
    for key in values:
        if key not in names:
            raise unknown_name(f"parameter of {what}", key, names or ["(none)"])
    try:
        return maker(**check_types(maker, values))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or what.rpartition(" ")[2]
        got = f"got {shorten(first['input'])}"
        raise BadValue(f"{what}: {where}: {first['msg'].lower()}, {got}") from None
    except KeyholeError:
        raise
    except BAD_VALUES as error:
        raise BadValue(f"{what}: {one_line(error)}") from error


def check_types(maker: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Converts values to their annotated types; a pydantic dataclass does that itself."""
    if isinstance(maker, type) and is_pydantic_dataclass(maker):
        return values
    hints = parameter_hints(maker)
    return {k: check_type(k, v, hints[k]) if k in hints else v for k, v in values.items()}


def parameter_hints(maker: Callable[..., Any]) -> dict[str, Any]:
    """Returns the annotations of the parameters; none where Python cannot read them."""
    plain_class = isinstance(maker, type) and not dataclasses.is_dataclass(maker)
    try:
        return get_type_hints(maker.__init__ if plain_class else maker, include_extras=True)
    except (NameError, TypeError):  # annotations that only a type checker can read
        return {}


def check_type(name: str, value: object, hint: Any) -> Any:
    """Converts one value to its annotated type, unless pydantic does not know that type.

    Raises :class:`ValidationError`, which names the parameter.
    """
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(
            dict[str, hint], config=ConfigDict(arbitrary_types_allowed=True)
        )
    except PydanticUserError:
        return value
    return adapter.validate_python({name: value})[name]
