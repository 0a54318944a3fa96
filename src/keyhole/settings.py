"""Settings that people write: a bad key or value becomes one clear line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, Field, ValidationError

from keyhole.errors import BadValue
from keyhole.registry import shortened, unknown

S = TypeVar("S", bound=BaseModel)

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""A seed that every generator takes: NumPy's refuse negative ones."""
Count = Annotated[int, Field(ge=1, lt=2**31)]
"""How many of something that is to be computed."""


def checked(
    kind: type[S], values: dict[str, Any], *, where: str = "", inner: Iterable[str] = ()
) -> S:
    """Builds ``kind``; ``inner`` are the keys that its nested tables may have."""
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
