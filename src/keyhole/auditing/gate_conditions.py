"""The conditions under which a gate fails, as they are written after ``--fail-on``; no torch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from keyhole.errors import BadValue

FORMS = "broken, 'read>0.05', 'read>=0.1', defense-idle or worse-than:RUN, the first three also as "
FORMS += "honest:... or malicious:..."
"""What an error says a condition may be."""
PATTERN = re.compile(
    r"(?:(?P<server>honest|malicious):)?(?:(?P<broken>broken)|read\s*(?P<sign>>=?)\s*(?P<limit>\S+))"
)
WORSE_THAN = "worse-than:"
DEFENSE_IDLE = "defense-idle"


class Rule(StrEnum):
    """Why a gate fails."""

    BROKEN = "broken"
    READ = "read"
    WORSE = "worse-than"
    IDLE = "defense-idle"
    """A defense did nothing, or less than it declares."""
    UNTESTED = "not-tested"
    """Nothing was measured, so that no condition can be checked."""


@dataclass(frozen=True)
class Condition:
    """A condition under which a gate fails.

    Args:
        text: The condition as the user wrote it.
        rule: What it is about: ``broken``, ``read``, ``defense-idle`` or ``worse-than``.
        server: The only server that it is about, ``honest`` or ``malicious``; None: each that was
            tried.
        limit: The largest share of images that may be read.
        inclusive: Whether a share equal to the limit fails, too.
        baseline: The run that must not be better.
    """

    text: str
    rule: Rule
    server: str | None = None
    limit: float = 0.0
    inclusive: bool = False
    baseline: Path | None = None

    def is_met(self, read: float) -> bool:
        """Whether so large a share of images read makes the gate fail.

        Args:
            read: The share, in [0, 1].
        """
        return read > self.limit or (self.inclusive and read == self.limit)


def read_condition(text: str) -> Condition:
    """Reads one condition.

    >>> read_condition("honest:read>0.05").limit
    0.05

    Args:
        text: ``broken``, ``read>0.05``, ``read>=0.1``, each also after ``honest:`` or
            ``malicious:``, ``defense-idle``, or ``worse-than:RUN``.

    Raises:
        BadValue: It is none of these.
    """
    plain = text.strip()
    if plain == DEFENSE_IDLE:
        return Condition(plain, Rule.IDLE)
    if plain.startswith(WORSE_THAN):
        place = plain.removeprefix(WORSE_THAN).strip()
        if not place:
            raise BadValue(f"fail-on: {text!r} names no run: write worse-than:runs/baseline")
        return Condition(plain, Rule.WORSE, baseline=Path(place))
    found = PATTERN.fullmatch(plain)
    if found is None:
        raise BadValue(f"fail-on: cannot read {text!r}: write {FORMS}")
    if found["broken"]:
        return Condition(plain, Rule.BROKEN, found["server"])
    limit, inclusive = read_share(found["limit"], text), found["sign"] == ">="
    if inclusive and limit == 0:
        raise BadValue(f"fail-on: {text!r} is always met: write 'read>0'")
    if limit == 1 and not inclusive:
        raise BadValue(f"fail-on: {text!r} can never be met: write 'read>=1', or a smaller share")
    return Condition(plain, Rule.READ, found["server"], limit, inclusive)


def read_share(text: str, condition: str) -> float:
    """The limit in a condition, a share in [0, 1]."""
    try:
        limit = float(text)
    except ValueError:
        limit = -1.0
    if not 0 <= limit <= 1:
        raise BadValue(
            f"fail-on: {condition!r} needs a share of images between 0 and 1, such as 'read>0.05'"
        )
    return limit


def read_conditions(texts: Sequence[str]) -> tuple[Condition, ...]:
    """Reads conditions; one that is given twice counts once.

    Args:
        texts: The conditions, as :func:`read_condition` takes them.
    """
    return tuple(dict.fromkeys(read_condition(text) for text in texts))
