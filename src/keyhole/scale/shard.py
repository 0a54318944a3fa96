"""A shard: every n-th piece of a plan, for arrays of jobs that know nothing of each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from keyhole.errors import BadValue

T = TypeVar("T")


@dataclass(frozen=True)
class Shard:
    """The pieces ``number``, ``number + count``, ``number + 2 * count`` ... of a plan.

    Args:
        number: Which shard it is, from 1.
        count: How many shards there are.
    """

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def choose(self, items: Sequence[T]) -> list[T]:
        """The shard's part of a list.

        Args:
            items: The list.
        """
        return list(items[self.number - 1 :: self.count])


def read_shard(text: str) -> Shard:
    """Reads ``3/16``.

    Args:
        text: What was written.

    >>> read_shard("3/16").choose(range(40))
    [2, 18, 34]
    """
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count) < 10**6):
        raise BadValue(f"shard: write 3/16 for the third of sixteen shards, got {text!r}")
    return Shard(int(number), int(count))
