"""No defense: the yardstick."""

from __future__ import annotations

from typing import ClassVar

from pydantic.dataclasses import dataclass

from keyhole.defenses.base import Defense


@dataclass(frozen=True, kw_only=True)
class NoDefense(Defense):
    """The client shares its update as it is."""

    name: ClassVar[str] = "none"
    summary: ClassVar[str] = "the update is shared as it is"
    paper: ClassVar[str] = ""
