"""What a metric is: how to read its values and, for metrics of images, how to measure them."""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from keyhole.errors import BadValue, DoesNotFit, one_line

if TYPE_CHECKING:
    from torch import Tensor

NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
"""A metric's name is a key of JSON objects and the head of a table's column."""
MOST_DIGITS = 12
"""Decimal places of a metric in tables."""
ROUNDING = 1e-6
"""Relative difference that rounding may make: of a value to its bounds, of two means."""
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What a function raises that cannot measure the images it is given."""


@dataclass(frozen=True)
class Metric:
    """What a metric measures, and how to read its values.

    Args:
        name: Letters, digits, ``.``, ``_`` and ``-``; unique among metrics.
        label: The head of its column.
        summary: What it measures, in one line.
        leaks_high: Whether a high value means that more was seen.
        low: The least value that it can have.
        high: The greatest; None: there is none.
        unit: Shown beside the label.
        cap: Greater values, infinity too, count as this one; only where ``high`` is None.
        digits: Decimal places in tables.
        percent: Whether tables show it as a percentage.
    """

    name: str
    label: str
    summary: str
    leaks_high: bool
    low: float
    high: float | None
    unit: str = ""
    cap: float | None = None
    digits: int = 3
    percent: bool = False

    @property
    def arrow(self) -> str:
        """The direction in which more is seen."""
        return "↑" if self.leaks_high else "↓"

    def format(self, value: float) -> str:
        """Rounds a value for a table; what would round to zero is shown with its exponent.

        Args:
            value: The value.

        >>> from keyhole.metrics import METRICS
        >>> METRICS["psnr"].format(26.349), METRICS["reid"].format(0.5)
        ('26.3', '50%')
        >>> METRICS["mse"].format(3.2e-13)
        '3e-13'
        """
        if self.percent:
            return f"{value:.0%}"
        if 0 < abs(value) < 0.5 * 10**-self.digits:
            return f"{value:.0e}"
        return f"{value:.{self.digits}f}"


class Measure(Protocol):
    """A function that compares images."""

    def __call__(self, found: Tensor, truth: Tensor, *, data_range: float) -> Tensor:
        """One value per image, ``[n]``, from two batches ``[n, C, H, W]``."""


@dataclass(frozen=True)
class ImageMetric(Metric):
    """A metric that compares what an attacker saw with the true images.

    An audit measures it for every image where it is asked for: ``--metric my_parts:LARGEST``.

    >>> def largest_error(found, truth, *, data_range):
    ...     return (found - truth).abs().flatten(1).amax(1) / data_range
    >>> words = {"name": "largest", "label": "Largest", "summary": "largest error of a pixel"}
    >>> bounds = {"leaks_high": False, "low": 0.0, "high": 1.0}
    >>> ImageMetric(**words, **bounds, function=largest_error).arrow
    '↓'

    Args:
        function: Called with what was seen and the truth, both in [0, 1], and ``data_range=1.0``.
    """

    function: Measure = field(kw_only=True)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadValue(f"metric {self.name!r}: name it with letters, digits, '.', '_' or '-'")
        if not 0 <= self.digits <= MOST_DIGITS:
            raise BadValue(f"metric {self.name}: digits: they are 0 to {MOST_DIGITS}")
        highest = self.high if self.high is not None else self.cap
        if not math.isfinite(self.low) or (highest is not None and not highest > self.low):
            raise BadValue(f"metric {self.name}: low must be finite, and less than high or cap")

    @property
    def description(self) -> Metric:
        """The same without its function: what a finding keeps."""
        fields = dataclasses.fields(Metric)
        return Metric(**{each.name: getattr(self, each.name) for each in fields})

    def measure(self, found: Tensor, truth: Tensor) -> list[float]:
        """One value per image; raises :class:`DoesNotFit` where the metric is not as it says.

        Args:
            found: What the attacker saw, in [0, 1], ``[n, C, H, W]``.
            truth: The true images, likewise.
        """
        from torch import Tensor  # not needed to describe a metric

        try:
            values = self.function(found, truth.to(found), data_range=1.0)
        except FAILURES as error:
            shape = "x".join(str(n) for n in truth.shape)
            raise DoesNotFit(
                f"metric {self.name}: its function fails on {shape} images ({one_line(error)})"
            ) from error
        if not isinstance(values, Tensor) or values.shape != (len(truth),):
            got = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise DoesNotFit(f"metric {self.name}: it must give a tensor [{len(truth)}], not {got}")
        capped = values.double() if self.cap is None else values.double().clamp(max=self.cap)
        return [self._check(value) for value in capped.tolist()]

    def _check(self, value: float) -> float:
        slack = ROUNDING * max(1.0, abs(value))
        highest = math.inf if self.high is None else self.high
        if not math.isfinite(value) or not self.low - slack <= value <= highest + slack:
            raise DoesNotFit(
                f"metric {self.name}: it gave {value:g}, and says that its values are finite and "
                f"between {self.low:g} and {highest:g}"
            )
        return value
