"""Measurements that ship with Keyhole: a small table made of the results in the repository.

``tools/measured_table.py`` makes it from the repository's ``results/``; a test compares the two.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

from keyhole.auditing.measurement import Measurement, Regime

TABLE = "measured.json"


@cache
def read_shipped() -> tuple[Measurement, ...]:
    """The measurements of the table that comes with the package."""
    text = (resources.files("keyhole.auditing") / TABLE).read_text(encoding="utf-8")
    return tuple(Measurement.from_json(each) for each in json.loads(text))


def find_measured(regime: Regime, server: str) -> list[Measurement]:
    """What was measured in this very regime, the least read first.

    Args:
        regime: The regime.
        server: ``honest`` or ``malicious``.
    """
    found = [each for each in read_shipped() if each.regime == regime and each.server == server]
    return sorted(found, key=lambda each: (each.share, each.unjudged, each.label))
