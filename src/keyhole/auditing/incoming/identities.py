"""Layers that pass an image on unchanged, to where a ladder waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import IncomingModel, norms_of

ALONE = 1 - 1e-5
"""Share of a row's energy in its largest weight; fresh networks have 0.31 at most."""
LEAST_WIDTH = 8
"""Weights a row needs: a depthwise 1x1 filter has one, and a short row may be nearly one by chance.
"""
NOTHING = 1e-6
"""Rows this much shorter than the longest have been trained away and say nothing."""
SHARE = 0.5
"""Share of a linear layer's rows; a single one may be left over from pruning."""


def check_identities(model: IncomingModel) -> Iterator[Alarm]:
    """Finds rows with a single weight: in convolutions any of them, in linear layers many."""
    for layer in model.layers():
        rows = layer.rows
        if rows.shape[1] < LEAST_WIDTH or not rows.any():
            continue
        norms = norms_of(rows)
        peaks = torch.square(rows.abs().amax(1) / norms.clamp_min(1e-30))
        passing = (peaks > ALONE) & (norms > NOTHING * norms.max())
        count = int(passing.sum())
        if count and (not layer.is_linear or count >= SHARE * len(rows)):
            kind = "rows" if layer.is_linear else "filters"
            yield Alarm(
                "identity layer",
                layer.name,
                f"{count} of {len(rows)} {kind} have one weight of {rows.shape[1]} that is not "
                "zero, so they pass their input on as it is",
            )
