"""A Flower client that looks at the server's model before it trains on it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from keyhole.auditing.guard import ClientData
from keyhole.auditing.incoming.check import check_incoming
from keyhole.auditing.incoming.fingerprint import check_hash
from keyhole.data import ImageSet
from keyhole.defenses import Defense, NoDefense

log = logging.getLogger("keyhole")


def incoming_mod(
    *,
    client: Callable[[Any], ClientData],
    defense: Defense | None = None,
    expected_hash: Callable[[Any], str | None] | None = None,
    warn: bool = False,
) -> Any:
    """Returns a Flower client mod that refuses to train on a suspicious model.

    The client then answers with an error; its training function is not called and nothing leaves.
    A model whose architecture cannot be checked is refused as well. Put the mod outermost:
    ``ClientApp(mods=[incoming_mod(...), as_mod(...)])``. Models that passed are kept in the node's
    state and compared with those of the next round.

    Args:
        client: Returns a node's model as its own code builds it, its image set, its images in
            [0, 1] and their labels, from its context.
        defense: The defense that adds weights to the global model, if there is one.
        expected_hash: Returns the hash that other clients got, from the node's context; None: it
            is not known in this round.
        warn: Whether a suspicious model is only reported in the log.
    """
    from keyhole.federation.flower import before_training

    def check(
        weights: dict[str, Tensor], previous: dict[str, Tensor] | None, context: Any
    ) -> str | None:
        model, data, images, labels = client(context)
        expected = None if expected_hash is None else expected_hash(context)
        found = check_incoming(
            (defense or NoDefense()).prepare_model(model),
            weights,
            previous,
            hold_images(data, images, labels),
            expected_hash=None if expected is None else check_hash(expected),
        )
        log.info("keyhole: the incoming model has hash %s", found.hash)
        if found.suspicious is False:
            return None
        log.warning("keyhole: the incoming model is suspicious: %s", found.words)
        return None if warn else found.words

    return before_training(check)


def hold_images(data: ImageSet, images: Tensor, labels: Tensor) -> ImageSet:
    """Returns an image set of a client's own images alone, in [0, 1]."""
    pixels = (images * 255).round().clamp(0, 255).byte().cpu()
    return ImageSet(
        name=data.name,
        pixels=lambda indices: pixels[list(indices)],
        labels=labels.cpu(),
        classes=data.classes,
        size=data.size,
        mean=data.mean,
        std=data.std,
    )
