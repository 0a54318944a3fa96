"""Weights of a size that neither initialisation nor training gives."""

from __future__ import annotations

from collections.abc import Iterator

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import IncomingModel, norms_of

LONGEST_ROWS = 20.0
"""Median length of a layer's rows: fresh networks have 7 at most, LeNet from [-0.5, 0.5] has 8."""
LARGEST = 1000.0
"""The largest weight; honest ones stay below 100."""
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""Buffers of batch norms: they follow the activations, which have any size."""


def check_scale(model: IncomingModel) -> Iterator[Alarm]:
    """Looks at the length of each layer's rows, and at every tensor's largest value."""
    for layer in model.layers():
        length = float(norms_of(layer.rows).median())
        if length > LONGEST_ROWS:
            yield Alarm(
                "large weights",
                layer.name,
                f"half of its rows are longer than {length:.3g}; honest networks stay below "
                f"{LONGEST_ROWS:.0f}",
            )
    for name, tensor in model.weights.items():
        if name.endswith(STATISTICS) or not tensor.is_floating_point() or not tensor.numel():
            continue
        largest = float(tensor.abs().max())
        if largest > LARGEST:
            yield Alarm(
                "large weights",
                name,
                f"a value of size {largest:.3g}; honest networks stay below {LARGEST:.0f}",
            )
