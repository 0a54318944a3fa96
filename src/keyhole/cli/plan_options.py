"""Options made of a plan's fields, so that each is declared once: its name, type, bounds and help.

A command that takes a plan has one parameter for all of them::

    @takes_fields_of(TrainingPlan)
    def train(given: Given, out: ...) -> None:
        plan = make_settings(TrainingPlan, given)
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

Given = dict[str, Any]
"""The fields that the user gave, by name; the plan checks their values."""

C = TypeVar("C", bound=Callable[..., None])

GIVEN = "given"


def takes_fields_of(
    plan: type[BaseModel], *, without: Iterable[str] = (), called: Mapping[str, str] | None = None
) -> Callable[[C], C]:
    """Replaces a command's parameter ``given`` by one option for each field of ``plan``.

    Args:
        plan: The fields, each with its first paragraph of description as the option's help.
        without: Fields that are no options.
        called: Options that are called otherwise than the field: ``{"attacks": "attack"}``.
    """
    fields = {n: f for n, f in plan.model_fields.items() if n not in set(without)}
    options = [make_option((called or {}).get(n, n), f) for n, f in fields.items()]
    field_of = dict(zip([option.name for option in options], fields, strict=True))

    def decorate(function: C) -> C:
        signature = inspect.signature(function, eval_str=True)

        def command(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in field_of}
            given = {field_of[n]: v for n, v in chosen.items() if v is not None and v is not False}
            function(given=given, **values)

        own = list(signature.parameters.values())
        place = [parameter.name for parameter in own].index(GIVEN)
        shown = [*own[:place], *options, *own[place + 1 :]]
        shown = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in shown]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        command.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return command  # type: ignore[return-value]

    return decorate


def make_option(name: str, field: FieldInfo) -> inspect.Parameter:
    """The option that sets a field; it is None (a flag: False) where it is not given."""
    paragraph = (field.description or "").split("\n\n")[0]
    kind = type_of_option(field.annotation)
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=" ".join(paragraph.split()))
    annotation = Annotated[kind if kind is bool else kind | None, option]  # type: ignore[valid-type]
    default = False if kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def type_of_option(annotation: Any) -> type:
    """The type that the command line reads a field as: text, where the plan itself reads it.

    >>> type_of_option(int | None), type_of_option(str | int), type_of_option(tuple[int, ...])
    (<class 'int'>, <class 'str'>, <class 'str'>)
    """
    if get_origin(annotation) is Annotated:
        return type_of_option(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = {type_of_option(each) for each in get_args(annotation) if each is not type(None)}
        return kinds.pop() if len(kinds) == 1 else str
    return annotation if annotation in (int, float, bool, Path) else str
