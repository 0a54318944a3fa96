"""The mean and standard deviation of pixels, as people write them: ``0.5``, ``0.49,0.48,0.45``."""

from __future__ import annotations

from keyhole.errors import BadValue
from keyhole.spelling import shorten

MAX_CHANNELS = 64
MAX_VALUE = 1e6
"""The largest mean or standard deviation; its inverse is the smallest standard deviation."""


def parse_means(value: object) -> tuple[float, ...]:
    """Reads ``0.5``, ``"0.49,0.48,0.45"`` or a list of numbers.

    >>> parse_means("0.49, 0.48, 0.45")
    (0.49, 0.48, 0.45)
    """
    found = parse_numbers(value)
    if not found or any(not abs(v) <= MAX_VALUE for v in found):
        raise unreadable_error("mean", value)
    return found


def parse_deviations(value: object) -> tuple[float, ...]:
    """Reads standard deviations, which must be above 0, as :func:`parse_means` does."""
    found = parse_numbers(value)
    if not found or any(not 1 / MAX_VALUE <= v <= MAX_VALUE for v in found):
        raise unreadable_error("std", value)
    return found


def parse_numbers(value: object) -> tuple[float, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    listed = list(parts) if isinstance(parts, list | tuple) else [parts]
    if len(listed) > MAX_CHANNELS or any(not isinstance(p, str | int | float) for p in listed):
        return ()
    try:
        return tuple(float("nan") if isinstance(p, bool) else float(str(p)) for p in listed)
    except (ValueError, OverflowError):
        return ()


def unreadable_error(name: str, value: object) -> BadValue:
    above = " above 0" if name == "std" else ""
    return BadValue(
        f"{name}: give one number{above}, or one per channel as in 0.49,0.48,0.45; got "
        f"{shorten(value)}"
    )


def check_mean_and_std(mean: object, std: object) -> None:
    """Raises where one of the two is given without the other."""
    if (mean is None) != (std is None):
        given, lacking = ("mean", "std") if std is None else ("std", "mean")
        raise BadValue(f"{given} is given without {lacking}: give both")


def normalisation_entries(mean: object, std: object) -> dict[str, str]:
    """Returns both as texts that read back to the same numbers; nothing if neither is given.

    >>> normalisation_entries(0.5, (0.2, 0.25, 0.3))
    {'mean': '0.5', 'std': '0.2,0.25,0.3'}
    """
    check_mean_and_std(mean, std)
    if mean is None:
        return {}
    both = {"mean": parse_means(mean), "std": parse_deviations(std)}
    return {name: ",".join(repr(v) for v in values) for name, values in both.items()}
