"""Defenses by name, alone or in a row: ``dropout + topk(k=0.01)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from keyhole.errors import BadValue
from keyhole.registry import Registry
from keyhole.spelling import shorten, split_outside_brackets

if TYPE_CHECKING:
    from keyhole.defenses.base import Defense


class DefenseRegistry(Registry["Defense"]):
    """Defenses by name. A text with ``+`` between names is a composition of them."""

    def parse(self, text: str) -> Defense:
        return combine(text, super().parse)

    def parse_builtin(self, text: str) -> Defense:
        return combine(text, super().parse_builtin)

    def check_name(self, text: str) -> None:
        for part in split_parts(text):
            super().check_name(part)


def split_parts(text: str) -> list[str]:
    """The names between the plus signs of a text; raises where one is empty.

    >>> split_parts("dropout + topk(k=1e+0)")
    ['dropout', 'topk(k=1e+0)']
    """
    parts = [part.strip() for part in split_outside_brackets(text, "+")]
    if len(parts) > 1 and not all(parts):
        raise BadValue(f"{shorten(text)}: write a defense on both sides of each +")
    return parts


def combine(text: str, parse: Callable[[str], Defense]) -> Defense:
    """The defense that a text names, or the composition of those between its plus signs."""
    parts = split_parts(text)
    if len(parts) == 1:
        return parse(text)
    from keyhole.defenses.composition import Composition  # needs torch, which a name does not

    return Composition(tuple(parse(part) for part in parts))
