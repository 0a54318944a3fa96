"""Settings as people write them: their types, and one clear line where a key or value is wrong."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from keyhole.errors import BadValue
from keyhole.mean_and_std import parse_deviations, parse_means
from keyhole.spelling import shorten, split_names, unknown_name

__all__ = [
    "AskedPrecision",
    "ClientMode",
    "Count",
    "Deviations",
    "Means",
    "Momentum",
    "Names",
    "NamesOrNone",
    "Positive",
    "Precision",
    "Seed",
    "Settings",
    "make_settings",
    "parse_mode",
]

S = TypeVar("S", bound=BaseModel)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every generator accepts: NumPy's refuse negative ones."""
Count = Annotated[int, Field(ge=1, lt=2**31)]
"""A number of things, at least 1."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Means = Annotated[tuple[float, ...], BeforeValidator(parse_means)]
Deviations = Annotated[tuple[float, ...], BeforeValidator(parse_deviations)]
Precision = Literal["float32", "tf32", "bf16"]
AskedPrecision = Literal["auto", "float32", "tf32", "bf16"]
ClientMode = Literal["train", "eval", "frozen-norm"]
"""``frozen-norm``: training mode with dropout, but BatchNorm uses its running statistics, as is
common with small batches."""


class Settings(BaseModel):
    """A frozen record of what was asked for. The text below a field describes it.

    Args:
        data: The fields by name.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        """Adds an ``Args:`` section, made of the texts below the fields, to the docstring."""
        fields = cls.model_fields.items()
        lines = [f"    {n}: {' '.join(f.description.split())}" for n, f in fields if f.description]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or ""), "", "Args:", *lines])

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as plain JSON values."""
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """Eight hex digits that identify these settings."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def split_text(value: object) -> object:
    """Splits a text of names at its commas; returns any other value as it is."""
    return tuple(split_names(value)) if isinstance(value, str) else value


NamesOrNone = Annotated[tuple[str, ...], BeforeValidator(split_text)]
Names = Annotated[NamesOrNone, Field(min_length=1)]
"""One name or more: a list of them, or a text with commas between them."""


def parse_mode(text: str) -> ClientMode:
    """Returns the client mode of this name; raises :class:`BadValue` where there is none.

    Args:
        text: ``train``, ``eval`` or ``frozen-norm``.
    """
    if text in get_args(ClientMode):
        return cast(ClientMode, text)
    raise BadValue(f"client-mode: choose one of {', '.join(get_args(ClientMode))}, got {text!r}")


def make_settings(
    kind: type[S], values: dict[str, Any], *, where: str = "", inner: Iterable[str] = ()
) -> S:
    """Builds settings from values; an unknown key or a wrong value is an error of one line.

    Args:
        kind: The class of the settings.
        values: Its fields by name.
        where: Where the values were written, for errors: `` in plan.toml``.
        inner: The keys that nested tables may have, for suggestions.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        place = [str(part) for part in first["loc"]]
        if first["type"] == "extra_forbidden":
            known = inner if len(place) > 1 else kind.model_fields
            raise unknown_name(f"key{where}", place[-1], known) from None
        got = f", got {shorten(first['input'])}" if not isinstance(first["input"], dict) else ""
        message = f"{'.'.join(place).replace('_', '-')}{where}: {first['msg'].lower()}{got}"
        raise BadValue(message) from None
