"""Layers that pass an image on unchanged, to where a ladder waits for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
    """Finds rows with a single weight: in convolutions any of them, in linear layers many.

    ConViT starts its values so; where the client's own code does, it is no alarm.
    """
    for layer in model.layers():
        count = count_passing(layer.rows, is_linear=layer.is_linear)
        if count and not model.starts_so(layer.name, starts_as_identity):
            kind = "rows" if layer.is_linear else "filters"
            yield Alarm(
                "identity layer",
                layer.name,
                f"{count} of {len(layer.rows)} {kind} have one weight of {layer.rows.shape[1]} "
                "that is not zero, so they pass their input on as it is",
            )


def starts_as_identity(weight: Tensor) -> bool:
    """Returns whether a weight ``[out, in, ...]`` passes its input on."""
    return count_passing(weight.float().flatten(1), is_linear=weight.ndim == 2) > 0


def count_passing(rows: Tensor, *, is_linear: bool) -> int:
    """Counts the rows with a single weight; 0 if they are too few or too short to tell."""
    if rows.shape[1] < LEAST_WIDTH or not rows.any():
        return 0
    norms = norms_of(rows)
    peaks = torch.square(rows.abs().amax(1) / norms.clamp_min(1e-30))
    count = int(((peaks > ALONE) & (norms > NOTHING * norms.max())).sum())
    return count if not is_linear or count >= SHARE * len(rows) else 0
