"""Signatures on a manifest's lines, by which the holder of the key notices any change.

Every line has a number and a signature (a keyed hash) of the number and all else on the line, so
that lines can be appended one by one and a kill loses no earlier line. The first line of a complete
manifest has the count of lines and one signature of all other signatures: of the whole manifest.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

COUNT, NUMBER, SIGNATURE, WHOLE_SIGNATURE = "pictures", "number", "mark", "mark_of_all"
MAX_LINES = 1 << 40


class Sign(Protocol):
    """Returns a keyed hash of ``parts`` for one purpose."""

    def __call__(self, purpose: str, *parts: bytes) -> str: ...


@dataclass(frozen=True)
class ManifestChanges:
    """What was changed in a manifest since it was written: how many lines of each kind."""

    first_line: int = 0
    changed: int = 0
    missing: int = 0
    repeated: int = 0
    moved: int = 0
    mixed: int = 0
    """1 if every line is authentic, but not all are of this manifest."""

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def describe(self) -> str:
        """Returns a text such as ``1 line changed, 2 lines missing``; empty without changes."""
        words = [
            f"{count} line{'s' * (count > 1)} {word}"
            for word, count in vars(self).items()
            if count and word in ("changed", "missing", "repeated", "moved")
        ]
        words += ["its first line changed"] * self.first_line
        words += ["lines of an older manifest inserted"] * self.mixed
        return ", ".join(words)


def sign_line(plain: dict[str, Any], number: int, sign: Sign) -> dict[str, Any]:
    """Returns a line with its number and its signature."""
    numbered = {**without_signatures(plain), NUMBER: number}
    return {**numbered, SIGNATURE: sign("line of the record", canonical_bytes(numbered))}


def sign_header(
    plain: dict[str, Any], lines: Sequence[dict[str, Any]], sign: Sign
) -> dict[str, Any]:
    """Returns the first line with its signature and, if it is complete, one of all ``lines``."""
    header = without_signatures(plain)
    if header["complete"] is not True:
        return {**header, SIGNATURE: header_signature(header, sign)}
    header[COUNT] = len(lines)
    return {
        **header,
        SIGNATURE: header_signature(header, sign),
        WHOLE_SIGNATURE: whole_signature(lines, sign),
    }


def header_signature(header: dict[str, Any], sign: Sign) -> str:
    return sign("first line of the record", canonical_bytes(without_signatures(header)))


def whole_signature(lines: Sequence[dict[str, Any]], sign: Sign) -> str:
    """Returns the signature of all lines' signatures."""
    signatures = (str(line.get(SIGNATURE)).encode("utf-8", "replace") for line in lines)
    return sign("whole record", *signatures)


def is_authentic(line: dict[str, Any], sign: Sign) -> bool:
    """Returns whether a line is as the holder of the key wrote it."""
    number = line.get(NUMBER)
    if type(number) is not int:
        return False
    return signatures_match(sign_line(line, number, sign)[SIGNATURE], line.get(SIGNATURE))


def find_changes(
    header: dict[str, Any], lines: Sequence[dict[str, Any] | None], sign: Sign
) -> tuple[list[bool], ManifestChanges]:
    """Returns whether each line is authentic, and all changes; None is an unreadable line."""
    authentic = [line is not None and is_authentic(line, sign) for line in lines]
    kept = [line for line, ok in zip(lines, authentic, strict=True) if ok and line is not None]
    numbers = [int(line[NUMBER]) for line in kept]
    changed = len(lines) - len(kept)
    repeated = len(numbers) - len(set(numbers))
    moved = sum(two < one for one, two in pairwise(numbers))
    complete, count = header.get("complete") is True, header.get(COUNT)
    expected = count if complete and type(count) is int else max(numbers, default=0)
    changes = ManifestChanges(
        first_line=int(not signatures_match(header_signature(header, sign), header.get(SIGNATURE))),
        changed=changed,
        missing=max(0, min(expected, MAX_LINES) - len(set(numbers)) - changed),
        repeated=repeated,
        moved=moved,
    )
    if not changes and complete:
        whole = whole_signature(kept, sign)
        if not signatures_match(whole, header.get(WHOLE_SIGNATURE)):
            changes = ManifestChanges(mixed=1)
    return authentic, changes


def without_signatures(line: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in line.items() if k not in (SIGNATURE, WHOLE_SIGNATURE)}


def canonical_bytes(line: dict[str, Any]) -> bytes:
    """Returns a line as bytes that do not depend on the order of its keys."""
    return json.dumps(line, sort_keys=True).encode("ascii")


def signatures_match(one: object, two: object) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(str(one).encode(), str(two).encode("utf-8", "replace"))
