"""What has changed since the round before, and what the client's own images say about it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import nn

from keyhole.auditing.incoming.result import Alarm
from keyhole.auditing.incoming.subject import IncomingModel, Tensors, choose_images, is_matrix
from keyhole.auditing.own_images import compute_losses
from keyhole.data import ImageSet

LARGEST_CHANGE = 20.0
"""Change of a layer over its size before; the largest of an honest first round was 5 (LeNet)."""
LOSS_OF_CHANCE = 4.0
"""Mean loss over that of guessing, ``log(classes)``; fresh networks stay below 2."""
LEAST_LOSS = 6.0
"""Mean loss below which there is no alarm: with two classes guessing costs only 0.7."""
LOSS_RISE = 3.0
"""How many times the previous loss, guessing at least, a round may leave."""


def check_change(model: IncomingModel) -> Iterator[Alarm]:
    """Finds layers that changed by more than a round of training changes them."""
    assert model.previous is not None
    for name, tensor in model.weights.items():
        before = model.previous.get(name)
        if before is None or before.shape != tensor.shape or not is_matrix(name, tensor):
            continue
        size = float(before.float().norm())
        change = float((tensor.float() - before.float()).norm())
        if size > 0 and not change <= LARGEST_CHANGE * size:
            yield Alarm(
                "large change",
                name.removesuffix(".weight"),
                f"it changed by {change / size:.3g} times its size since the previous round",
            )
        elif size > 0 and not tensor.any():
            sentence = "it is zero now and was not in the previous round"
            yield Alarm("emptied layer", name.removesuffix(".weight"), sentence)


@torch.no_grad()
def check_loss(
    network: nn.Module, weights: Tensors, previous: Tensors | None, data: ImageSet
) -> Iterator[Alarm]:
    """Finds a model whose loss on the client's own images no training leaves."""
    chosen = choose_images(data)
    versions = [dict(weights)] if previous is None else [dict(weights), dict(previous)]
    found = compute_losses(network, tuple(versions), data, data.images(chosen), data.labels[chosen])
    loss, guessing = float(found[0].mean()), math.log(max(2, len(data.classes)))
    if not loss <= max(LEAST_LOSS, LOSS_OF_CHANCE * guessing):
        yield Alarm(
            "large loss",
            "",
            f"the mean loss of {len(found[0])} own images is {loss:.3g}; guessing costs "
            f"{guessing:.3g}",
        )
    elif previous is not None and loss > LOSS_RISE * max(float(found[1].mean()), guessing):
        yield Alarm(
            "risen loss",
            "",
            f"the mean loss of {len(found[0])} own images rose from {float(found[1].mean()):.3g} "
            f"to {loss:.3g} since the previous round",
        )
