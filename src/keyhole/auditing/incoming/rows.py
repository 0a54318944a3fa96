"""Rows of a layer that no training makes: copies of one row, ladders, half-negative traps."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import IncomingModel, norms_of
from keyhole.seeds import generator

PARALLEL = 0.99
"""Cosine from which two rows are copies: no two rows of an honest network had more than 0.90."""
PARALLEL_NARROW = 1 - 1e-6
"""The same for rows of few weights, such as depthwise filters, which training may make similar."""
NARROW = 16
"""Weights up to which a row counts as narrow."""
COPIES = 8
"""Rows that must be copies of one: a few may train alike, and a ladder of fewer sorts nothing."""
SKETCH = 64
"""Random directions in which rows are compared first: unrelated rows differ in some of them."""
ALIKE = 0.95
"""Cosine there from which rows are compared in full; it strays from the true one by 0.01."""
MOST_ROWS = 4096
"""Rows of a layer that are compared with one another; of more, evenly spaced ones."""
CONSTANT = 1e-3
"""Spread of a row, relative to its mean, below which all its weights are the same."""
WIDE = 32
"""Weights a row needs for its signs to be counted."""
MANY_ROWS = 8
"""Rows a layer needs for the same."""
BALANCED = 0.75
"""Share of rows with as many negative as positive weights; chance gives at most 0.14 at 32."""
NEGLIGIBLE = 1e-4
"""Singular values below this share of the largest do not count: float32 rounds there."""
FEW = 0.5
"""Share of the possible directions up to which rows span few: above it in 65 honest networks."""


def check_rows(model: IncomingModel) -> Iterator[Alarm]:
    """Looks at every layer's rows but the last layer's, whose rows nothing cuts off."""
    last = model.last_layer()
    for layer in model.layers():
        if last is not None and layer.name == last.name:
            continue
        bias = model.bias(layer.name, len(layer.rows))
        copies = list(check_copies(layer.name, layer.rows, bias))
        yield from copies or check_span(layer.name, layer.rows)
        yield from check_constant_rows(layer.name, layer.rows)
        yield from check_signs(layer.name, layer.rows)


def check_copies(layer: str, rows: Tensor, bias: Tensor | None) -> Iterator[Alarm]:
    """Finds rows that are multiples of one another, and thresholds that they spread."""
    copies = find_copies(rows)
    if len(copies) < COPIES:
        return
    count = f"{len(copies)} of {len(rows)} rows are copies of one another up to their scale"
    steps = None if bias is None else bias[copies] / norms_of(rows[copies])
    if steps is None or len(set(steps.tolist())) < COPIES:
        yield Alarm("copied rows", layer, f"{count}; training makes no two rows alike")
        return
    low, high = float(steps.min()), float(steps.max())
    spread = f"{count}, and their biases spread from {low:.3g} to {high:.3g}"
    yield Alarm("ladder", layer, f"{spread}, which sorts a batch into bins of single images")


def find_copies(rows: Tensor) -> Tensor:
    """Returns the numbers of the largest set of rows that are parallel to one of them.

    Args:
        rows: ``[k, D]``; rows of zeros are left out.
    """
    (kept,) = torch.where(norms_of(rows) > 0)
    if len(kept) > MOST_ROWS:
        kept = kept[torch.linspace(0, len(kept) - 1, MOST_ROWS).long()]
    if len(kept) < COPIES or rows.shape[1] < 2:
        return kept[:0]
    units = normalize(rows[kept])
    if rows.shape[1] > SKETCH:
        draw = torch.randn(rows.shape[1], SKETCH, generator=generator(0, "sketch"))
        sketch = normalize(units @ draw.to(units))
    else:
        sketch = units
    alike = (sketch @ sketch.T).abs() > ALIKE
    first = int(alike.sum(1).argmax())
    near = torch.where(alike[first])[0]
    parallel = (units[near] @ units[first]).abs()
    least = PARALLEL if rows.shape[1] > NARROW else PARALLEL_NARROW
    return kept[near[parallel > least]]


def check_constant_rows(layer: str, rows: Tensor) -> Iterator[Alarm]:
    """Finds rows whose weights are all the same: such a row measures the brightness of an image."""
    if rows.shape[1] < NARROW:
        return
    middle = rows.mean(1).abs()
    constant = (rows.amax(1) - rows.amin(1) < CONSTANT * middle) & (middle > 0)
    if constant.any():
        found = f"{int(constant.sum())} of {len(rows)} rows have {rows.shape[1]} equal weights"
        yield Alarm("constant rows", layer, f"{found}, which measure an image's brightness")


def check_signs(layer: str, rows: Tensor) -> Iterator[Alarm]:
    """Finds layers whose rows have exactly as many negative weights as others."""
    count, width = rows.shape
    if count < MANY_ROWS or width < WIDE:
        return
    negative = (rows < 0).sum(1)
    share = float(((negative == width // 2) | (negative == width - width // 2)).float().mean())
    if share > BALANCED:
        yield Alarm(
            "trap rows",
            layer,
            f"{share:.0%} of its {count} rows are negative in exactly half of their {width} "
            "weights, as rows are that few images fire",
        )


def check_span(layer: str, rows: Tensor) -> Iterator[Alarm]:
    """Finds layers whose rows are mixtures of few directions, such as those of public images."""
    rows = rows[norms_of(rows) > 0]
    possible = min(rows.shape)
    if possible < WIDE:
        return
    if len(rows) > MOST_ROWS:
        rows = rows[torch.linspace(0, len(rows) - 1, MOST_ROWS).long()]
    values = torch.linalg.svdvals(rows)
    used = int((values > NEGLIGIBLE * values[0]).sum())
    if used <= FEW * possible:
        yield Alarm(
            "few directions",
            layer,
            f"its {len(rows)} rows span {used} directions of {possible}; rows that start at random "
            "span all of them",
        )
