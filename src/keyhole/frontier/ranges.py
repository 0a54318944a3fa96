"""Ranges of a defense's strength, as they are written after ``--search``; no torch."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from keyhole.errors import BadValue
from keyhole.spelling import parse_call, shorten, spell

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
RANGE = re.compile(rf"(?P<parameter>\w+)\s*=\s*(?P<mild>{NUMBER})\s*\.\.\s*(?P<strong>{NUMBER})")
FORM = "write it as gaussian(sigma=1e-6..1e-1), from the mildest value to the strongest"
DECADE = 10.0
"""From this ratio of its ends on, a range is halved on a logarithmic scale."""


@dataclass(frozen=True)
class StrengthRange:
    """A defense with one parameter left open between a mild and a strong value.

    Args:
        text: The range as the user wrote it.
        name: The defense's name.
        parameter: The parameter that is left open.
        mild: Its mildest value.
        strong: Its strongest value; it may be the smaller number, as a budget's is.
        others: The other parameters of the defense.
    """

    text: str
    name: str
    parameter: str
    mild: float
    strong: float
    others: tuple[tuple[str, object], ...] = ()

    @property
    def logarithmic(self) -> bool:
        """Whether the range is halved on a logarithmic scale."""
        low, high = sorted((self.mild, self.strong))
        return low > 0 and high / low >= DECADE

    def value_at(self, share: float) -> float:
        """The value at a share of the way from the mild end to the strong one.

        Args:
            share: In [0, 1].
        """
        if share in (0.0, 1.0):
            return self.strong if share else self.mild
        if self.logarithmic:
            start, end = math.log(self.mild), math.log(self.strong)
            return float(f"{math.exp(start + share * (end - start)):.4g}")
        return float(f"{self.mild + share * (self.strong - self.mild):.4g}")

    def defense_at(self, share: float) -> str:
        """The defense at a share of the way from the mild end to the strong one.

        Args:
            share: In [0, 1].

        >>> read_range("gaussian(sigma=1e-6..1e-2)").defense_at(0.5)
        'gaussian(sigma=0.0001)'
        """
        return spell(self.name, {self.parameter: self.value_at(share), **dict(self.others)})


def read_range(text: str) -> StrengthRange:
    """Reads one range.

    Args:
        text: ``gaussian(sigma=1e-6..1e-1)`` or ``dp(epsilon=500..5, clip=1.0)``: exactly one
            parameter has two values, the mildest first.

    Raises:
        BadValue: It is none of these.

    >>> read_range("dp(epsilon=500..5)").strong
    5.0
    """
    found = list(RANGE.finditer(text))
    if len(found) != 1:
        how = "no range" if not found else "more than one range"
        raise BadValue(f"search: {shorten(text)} has {how}: {FORM}")
    [match] = found
    plain = f"{text[: match.start()]}{match['parameter']}=None{text[match.end() :]}"
    name, values = parse_call(plain)
    parameter = match["parameter"]
    mild, strong = float(match["mild"]), float(match["strong"])
    if mild == strong or not math.isfinite(mild) or not math.isfinite(strong):
        raise BadValue(f"search: the ends of {shorten(text)} must be two finite values: {FORM}")
    others = tuple((key, value) for key, value in values.items() if key != parameter)
    return StrengthRange(text.strip(), name, parameter, mild, strong, others)
