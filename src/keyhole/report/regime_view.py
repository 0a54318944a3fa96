"""The part of the map of regimes that a page shows: the audit's own network, and its place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

from keyhole.auditing.audit_regime import EPOCH, STEP, STEPS
from keyhole.auditing.finding import Finding
from keyhole.auditing.regime_map import SOURCE, MappedRegime, Place, locate
from keyhole.auditing.sections import Section

LOCAL = {STEP: "1 step", STEPS: "5 steps", EPOCH: "1 epoch"}
SHADES = 10
"""Shades of a share, as classes of ``regimes.css``."""


def describe_maps(section: Section) -> list[dict[str, Any]]:
    """One map for each kind of server that was tried; none where the network is not on it.

    Args:
        section: One model on one data set.
    """
    by_server: dict[bool, list[Finding]] = {}
    for finding in section.findings:
        if finding.reads_images:
            by_server.setdefault(finding.honest, []).append(finding)
    places = [locate(found) for _, found in sorted(by_server.items(), reverse=True)]
    return [describe_map(place) for place in places if place is not None and place.drawn]


def describe_map(place: Place) -> dict[str, Any]:
    """One map: batches across, weights and local training down."""
    batches = sorted({each.batch for each in place.drawn})
    weights = sorted(
        {each.weights for each in place.drawn}, key=lambda name: (name[0] != "f", name)
    )
    found = {(each.weights, each.local, each.batch): each for each in place.drawn}
    rows = [
        {
            "weights": f"trained to {start}" if start.endswith("%") else start,
            "local": words,
            "cells": [
                describe_cell(found.get((start, local, batch)), place.here) for batch in batches
            ],
        }
        for start, (local, words) in product(weights, LOCAL.items())
    ]
    first = place.drawn[0]
    caption = (
        f"{first.network}, {place.regime.server} server, no defense, images of {first.data}: the "
        f"share that the best of our attacks read ({SOURCE}). Outlined: this audit, "
        f"{place.regime.words}. Weights trained to 70% classify that share of their training "
        "images right. A dash: not run."
    )
    return {"caption": caption, "batches": batches, "rows": rows}


def describe_cell(regime: MappedRegime | None, here: Sequence[MappedRegime]) -> dict[str, Any]:
    """One regime of the map: its share in words and as a shade; empty words: not run."""
    if regime is None:
        return {"text": "", "here": False}
    share = regime.read / regime.images
    return {
        "text": f"{share:.0%}",
        "here": regime in here,
        "shade": f"read{math.ceil(SHADES * share)}",
        "title": f"{regime.by}: {regime.read} of {regime.images} images",
    }
