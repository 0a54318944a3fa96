"""Marks on a record's lines, by which the holder of the key notices any change of it.

Every line has a number and a mark (a keyed hash) of the number and all that the line says, so that
lines can be added one by one and a kill costs none of the earlier ones. The first line of a record
that is complete has the count of lines and one mark of all other marks: the record as a whole.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

COUNT, NUMBER, MARK, WHOLE = "pictures", "number", "mark", "mark_of_all"


class Mark(Protocol):
    """A keyed hash of ``parts``, for one purpose."""

    def __call__(self, purpose: str, *parts: bytes) -> str: ...


@dataclass(frozen=True)
class Changes:
    """What was done to a record since it was written: how many lines of each kind."""

    first_line: int = 0
    changed: int = 0
    missing: int = 0
    repeated: int = 0
    moved: int = 0
    mixed: int = 0
    """1 where every line is true, but not all are of this record."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def in_words(self) -> str:
        """Such as ``1 line changed, 2 lines missing``; empty for none."""
        words = [
            f"{count} line{'s' * (count > 1)} {word}"
            for word, count in vars(self).items()
            if count and word in ("changed", "missing", "repeated", "moved")
        ]
        words += ["its first line changed"] * self.first_line
        words += ["lines of an older record put in"] * self.mixed
        return ", ".join(words)


def marked_line(plain: dict[str, Any], number: int, mark: Mark) -> dict[str, Any]:
    """A line with its number and its mark."""
    numbered = {**without_marks(plain), NUMBER: number}
    return {**numbered, MARK: mark("line of the record", content_of(numbered))}


def marked_head(
    plain: dict[str, Any], lines: Sequence[dict[str, Any]], mark: Mark
) -> dict[str, Any]:
    """The first line with its mark; that of a complete record also with one of all ``lines``."""
    head = without_marks(plain)
    if head["complete"] is not True:
        return {**head, MARK: mark_of_head(head, mark)}
    head[COUNT] = len(lines)
    return {**head, MARK: mark_of_head(head, mark), WHOLE: mark_of_all(lines, mark)}


def mark_of_head(head: dict[str, Any], mark: Mark) -> str:
    return mark("first line of the record", content_of(without_marks(head)))


def mark_of_all(lines: Sequence[dict[str, Any]], mark: Mark) -> str:
    return mark("whole record", *(str(line.get(MARK)).encode("utf-8", "replace") for line in lines))


def is_true(line: dict[str, Any], mark: Mark) -> bool:
    """Whether a line is as the holder of the key wrote it."""
    number = line.get(NUMBER)
    if type(number) is not int:
        return False
    return same(marked_line(line, number, mark)[MARK], line.get(MARK))


def find_changes(
    head: dict[str, Any], lines: Sequence[dict[str, Any] | None], mark: Mark
) -> tuple[list[bool], Changes]:
    """For each line whether it is true, and all that was changed; None is a line beyond reading."""
    true = [line is not None and is_true(line, mark) for line in lines]
    kept = [line for line, ok in zip(lines, true, strict=True) if ok and line is not None]
    numbers = [int(line[NUMBER]) for line in kept]
    changed = len(lines) - len(kept)
    repeated = len(numbers) - len(set(numbers))
    moved = sum(two < one for one, two in pairwise(numbers))
    complete, count = head.get("complete") is True, head.get(COUNT)
    meant = count if complete and type(count) is int else max(numbers, default=0)
    changes = Changes(
        first_line=int(not same(mark_of_head(head, mark), head.get(MARK))),
        changed=changed,
        missing=max(0, min(meant, MOST) - len(set(numbers)) - changed),
        repeated=repeated,
        moved=moved,
    )
    if not changes and complete and not same(mark_of_all(kept, mark), head.get(WHOLE)):
        changes = Changes(mixed=1)
    return true, changes


MOST = 1 << 40
"""Lines of a record."""


def without_marks(line: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in (MARK, WHOLE)}


def content_of(line: dict[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True).encode("ascii")


def same(one: object, two: object) -> bool:
    return hmac.compare_digest(str(one).encode(), str(two).encode("utf-8", "replace"))
