"""A last layer that decides whose gradient flows: muted classes, or no gradient at all."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import IncomingModel, Tensors, norms_of

SHORT = 1e-5
"""Length below which a row counts as zero: the shortest that fresh heads have is 0.0003."""
ZERO_ROWS = 0.5
"""Share of zero rows that is too many: training gives every class a row."""
BIAS_SPREAD = 20.0
"""Difference of two biases that fixes the output: priors of one in a million differ by 14."""
MUTED = 0.05
"""Slope of a class, relative to the steepest, below which it is muted; honest ones have 0.5."""
MUTED_CLASSES = 2
"""A confident network mutes one class, the one it is sure of; an honest one never mutes two."""


def check_last_layer(model: IncomingModel) -> Iterator[Alarm]:
    """Looks at the rows and biases of the last layer, and at the slopes of its classes."""
    found = model.last_layer()
    if found is None or len(found.rows) < 2:
        return
    layer, rows = found.name, found.rows
    bias = model.bias(layer, len(rows))
    yield from check_zero_rows(model, layer, rows)
    if bias is not None and float(bias.max() - bias.min()) > BIAS_SPREAD:
        yield Alarm(
            "fixed output",
            layer,
            f"its biases lie {float(bias.max() - bias.min()):.3g} apart, so they decide the class "
            "whatever the image shows",
        )
    if model.network is not None and model.inputs is not None:
        yield from check_muted_classes(model, layer, rows)


def check_zero_rows(model: IncomingModel, layer: str, rows: Tensor) -> Iterator[Alarm]:
    """Finds a last layer whose rows are zero, all of them or all but a few."""
    zero = int((norms_of(rows) < SHORT).sum())
    if zero == len(rows) and not starts_at_zero(model, layer):
        yield Alarm(
            "zero last layer",
            layer,
            f"all of its {zero} rows are zero, so this client's update leaves the layers before "
            "it unchanged, and a secure sum hides the others less",
        )
    elif ZERO_ROWS * len(rows) <= zero < len(rows):
        left = torch.where(norms_of(rows) >= SHORT)[0].tolist()
        classes = ", ".join(map(str, left[:3])) + ("..." if len(left) > 3 else "")
        yield Alarm(
            "muted classes",
            layer,
            f"the rows of {zero} of {len(rows)} classes are zero; only class {classes} has weights",
        )


def starts_at_zero(model: IncomingModel, layer: str) -> bool:
    """Returns whether the last layer is zero in an honest fresh model too, and this one is fresh.

    MLP-Mixer's is. A model that has trained batch norms, or whose last layer was not zero in the
    round before, is not fresh.
    """
    return model.starts_so(layer, lambda weight: not weight.any()) and not has_trained(
        model.weights
    )


def has_trained(weights: Tensors) -> bool:
    """Returns whether a batch norm has counted a batch."""
    counts = [t for name, t in weights.items() if name.endswith("num_batches_tracked")]
    return any(bool(count.any()) for count in counts)


@torch.no_grad()
def check_muted_classes(model: IncomingModel, layer: str, rows: Tensor) -> Iterator[Alarm]:
    """Finds classes whose images would send hardly any gradient into the network."""
    assert model.network is not None
    assert model.inputs is not None
    logits = model.network(model.inputs)
    if logits.shape[1] != len(rows) or len(rows) <= MUTED_CLASSES:
        return
    slopes = compute_slopes(logits, rows.to(logits.device))
    muted = (slopes < MUTED * slopes.amax(1, keepdim=True)).all(0)
    if int(muted.sum()) >= MUTED_CLASSES:
        yield Alarm(
            "muted classes",
            layer,
            f"images of {int(muted.sum())} of {len(rows)} classes would send less than "
            f"{MUTED:.0%} of the gradient that the others send",
        )


def compute_slopes(logits: Tensor, rows: Tensor) -> Tensor:
    """Returns how steep the loss is in the features if an image has each class, ``[n, classes]``.

    The slope is ``W^T (p - e_c)``, and its squared length ``p^T G p - 2 (G p)_c + G_cc`` with
    ``G = W W^T``.

    Args:
        logits: ``[n, classes]``.
        rows: The last layer's weight W, ``[classes, D]``.
    """
    likely = logits.double().softmax(1)
    gram = rows.double() @ rows.double().T
    seen = likely @ gram
    squared = (seen * likely).sum(1, keepdim=True) - 2 * seen + gram.diagonal()
    return squared.clamp_min(0).sqrt()
