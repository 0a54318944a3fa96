"""What an earlier result lacks beside the cell as it is described now.

A gap is said in words that begin with what the result is:

    part (8 of 128 images)         it was made by the same settings, but is not whole
    stale (training: epochs)       it was made by other settings than the cell has now
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from keyhole.spelling import parse_call


def part(words: str) -> str:
    return f"part ({words})"


def stale(words: str) -> str:
    return f"stale ({words})"


def count_gap(found: float, asked: float, what: str) -> str:
    """``part`` where there are fewer than asked for.

    >>> count_gap(250, 2000, "images")
    'part (250 of 2,000 images)'
    >>> count_gap(16, 8, "images")
    ''
    """
    return part(f"{found:,.0f} of {asked:,.0f} {what}") if found < asked else ""


def settings_gap(known: Mapping[str, Any], now: Mapping[str, Any], what: str = "") -> str:
    """``stale`` where settings differ that both name; a result may be older than a setting.

    >>> settings_gap({"epochs": 10}, {"epochs": 27, "clip": 5.0}, "training")
    'stale (training: epochs 10, now 27)'
    """
    now = json.loads(json.dumps(now))
    differing = [key for key in known if key in now and known[key] != now[key]]
    words = ", ".join(f"{key} {known[key]}, now {now[key]}" for key in differing[:2])
    return stale(f"{what}: {words}" if what else words) if differing else ""


def attack_gap(text: str, row: Mapping[str, Any] | None, iterations: int | None) -> str:
    """What the result of one attack lacks.

    Args:
        text: The attack as the cell writes it.
        row: Its result; None: there is none.
        iterations: How many the cell gives every iterative attack; None: those that ``text`` says.
    """
    name, asked = parse_call(text)
    if row is None:
        return part(f"without {text}")
    had = dict(row["parameters"])
    ran = had.pop("iterations", None)
    most = iterations or asked.pop("iterations", None)
    gap = settings_gap(had, asked, name)
    if gap or ran is None or most is None:
        return gap
    return count_gap(ran, most, f"iterations of {name}")
