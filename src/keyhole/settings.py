"""Settings that people write: their types, and one clear line where a key or a value is bad."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from keyhole.errors import BadValue
from keyhole.mean_and_std import parse_deviations, parse_means
from keyhole.spelling import shortened, split_names, unknown

S = TypeVar("S", bound=BaseModel)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every generator takes: NumPy's refuse negative ones."""
Count = Annotated[int, Field(ge=1, lt=2**31)]
"""How many of something that is to be computed."""
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1)]
Means = Annotated[tuple[float, ...], BeforeValidator(parse_means)]
Deviations = Annotated[tuple[float, ...], BeforeValidator(parse_deviations)]
Optimiser = Literal["sgd", "adam"]
ClientMode = Literal["train", "eval", "frozen-norm"]
"""``frozen-norm``: trains, dropout and all, but BatchNorm keeps to its running statistics, as is
common where batches are small."""


class Settings(BaseModel):
    """A frozen record of what was asked for; the text below a field describes it."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, defer_build=True
    )

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def digest(self) -> str:
        """Eight hex digits that tell these settings from others."""
        text = json.dumps(self.to_json(), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def split_text(value: object) -> object:
    """Names separated by commas as a tuple of them; anything but text as it is."""
    return tuple(split_names(value)) if isinstance(value, str) else value


NamesOrNone = Annotated[tuple[str, ...], BeforeValidator(split_text)]
Names = Annotated[NamesOrNone, Field(min_length=1)]
"""One name or more: a list of them, or a text with commas between them."""


def parse_mode(text: str) -> ClientMode:
    """The client mode of this name; raises :class:`BadValue` where there is none."""
    if text in get_args(ClientMode):
        return cast(ClientMode, text)
    raise BadValue(f"client-mode: choose one of {', '.join(get_args(ClientMode))}, got {text!r}")


def make_settings(
    kind: type[S], values: dict[str, Any], *, where: str = "", inner: Iterable[str] = ()
) -> S:
    """Builds ``kind``, or raises a :class:`KeyholeError` of one line.

    Args:
        kind: The pydantic model.
        values: Its fields by name.
        where: What the error says of where the values were written, such as `` in plan.toml``.
        inner: The keys that nested tables may have, for suggestions.
    """
    try:
        return kind(**values)
    except ValidationError as error:
        first = min(error.errors(), key=lambda e: e["type"] != "extra_forbidden")
        place = [str(part) for part in first["loc"]]
        if first["type"] == "extra_forbidden":
            known = inner if len(place) > 1 else kind.model_fields
            raise unknown(f"key{where}", place[-1], known) from None
        got = f", got {shortened(first['input'])}" if not isinstance(first["input"], dict) else ""
        message = f"{'.'.join(place).replace('_', '-')}{where}: {first['msg'].lower()}{got}"
        raise BadValue(message) from None
