"""Makes options of a plan's fields: each name, type, bound and help text is declared once.

A command that takes a plan has one parameter for all of its fields::

    @takes_fields_of(TrainingPlan)
    def train(given: Given, out: ...) -> None:
        plan = make_settings(TrainingPlan, given)
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import click
import typer
from pydantic import BaseModel

Given = dict[str, Any]
"""The fields that the user gave, by name; the plan checks their values."""

C = TypeVar("C", bound=Callable[..., None])

GIVEN = "given"


def takes_fields_of(
    plan: type[BaseModel],
    *,
    only: Iterable[str] | None = None,
    without: Iterable[str] = (),
    called: Mapping[str, str] | None = None,
    lists: bool = False,
    repeated: Iterable[str] = (),
) -> Callable[[C], C]:
    """Replaces a command's parameter ``given`` by one option for each field of ``plan``.

    Fields that hold several values may be given more than once: ``--attack linear --attack ig``
    is ``--attack linear,ig``.

    Args:
        plan: The fields, each with the first paragraph of its description as the option's help.
        only: The fields that become options; None means all.
        without: Fields that do not.
        called: Options whose names differ from their fields': ``{"attacks": "attack"}``.
        lists: Whether numbers may be lists, ``1,8``.
        repeated: Fields of one value that the command takes a list of names for.
    """
    fields = [n for n in only or plan.model_fields if n not in set(without)]
    several = {*repeated, *(n for n in fields if holds_several(plan.model_fields[n].annotation))}
    options = [
        make_option((called or {}).get(n, n), plan, n, lists=lists, repeated=n in several)
        for n in fields
    ]
    field_of = dict(zip([option.name for option in options], fields, strict=True))

    def decorate(function: C) -> C:
        signature = inspect.signature(function, eval_str=True)

        def command(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in field_of}
            given = {field_of[n]: v for n, v in chosen.items() if v is not None and v is not False}
            joined = {n: join_repeated(v) for n, v in given.items() if n in several}
            function(given=given | joined, **values)

        own = list(signature.parameters.values())
        place = [parameter.name for parameter in own].index(GIVEN)
        shown = [*own[:place], *options, *own[place + 1 :]]
        shown = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in shown]
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
        command.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
        return command  # type: ignore[return-value]

    return decorate


def help_of(plan: type[BaseModel], field: str) -> str:
    """The first paragraph of a field's description."""
    paragraph = (plan.model_fields[field].description or "").split("\n\n")[0]
    return " ".join(paragraph.split())


class NumberOrList(click.ParamType):  # type: ignore[type-arg]  # not generic in all versions
    """A number, or several separated by commas.

    Args:
        kind: The type of each number.
    """

    def __init__(self, kind: Any) -> None:
        self.kind, self.name = kind, f"{kind.name}[,...]"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any | list[Any]:
        """Reads ``8`` as a number, ``1,8`` and ``[1,8]`` as a list of them.

        Args:
            value: What was written.
            param: The option, for errors.
            ctx: The command, for errors.
        """
        text = str(value).strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        found = [self.kind.convert(each.strip(), param, ctx) for each in text.split(",")]
        return found if len(found) > 1 else found[0]


NUMBERS = {int: NumberOrList(click.INT), float: NumberOrList(click.FLOAT)}


def make_option(
    name: str,
    plan: type[BaseModel],
    field: str,
    *,
    lists: bool = False,
    repeated: bool = False,
) -> inspect.Parameter:
    """The option that sets a field; it is None (a flag: False) where it is not given."""
    kind: Any = type_of_option(plan.model_fields[field].annotation)
    kind = list[str] if repeated else kind
    words, help_text = f"--{name.replace('_', '-')}", help_of(plan, field)
    if lists and kind in NUMBERS:
        option = typer.Option(words, help=help_text, click_type=NUMBERS[kind])
    else:
        option = typer.Option(words, help=help_text)
    held: Any = kind if kind is bool else kind | None
    annotation: Any = Annotated[held, option]
    default = False if kind is bool else None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


def join_repeated(texts: Sequence[str]) -> str:
    """What was given in several options, as one of them gives it.

    >>> join_repeated(["linear", "ig,dia"])
    'linear,ig,dia'
    """
    return ",".join(texts)


def holds_several(annotation: Any) -> bool:
    """Whether a field holds several values.

    >>> holds_several(tuple[str, ...] | None), holds_several(str)
    (True, False)
    """
    if get_origin(annotation) in (Annotated, Union, types.UnionType):
        return any(holds_several(each) for each in get_args(annotation))
    return get_origin(annotation) is tuple


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
