"""What an update reveals about the client's labels, and about which images it was trained on."""

from __future__ import annotations

import time
from collections import Counter

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from keyhole.attacks import LabelInference
from keyhole.auditing.attack_choice import can_infer_labels
from keyhole.auditing.self_check import InferredLabels, OwnMembership
from keyhole.data import ImageSet
from keyhole.metrics.membership import auc
from keyhole.threat import Observation

MAX_CHUNK = 256
"""Images that go through the model at once, at most."""
FIRST_CHUNK = 4
"""Images in the first chunk: few, because a model may be slow."""
SECONDS = 2.0
"""Time for the losses of the client's images, and again for others; the rest is left out."""


def infer_labels(observation: Observation, labels: Tensor) -> InferredLabels | None:
    """How many labels the `labels` attack gets right; None if it cannot run."""
    if not can_infer_labels(observation):
        return None
    found = LabelInference()(observation).labels
    guessed = Counter([] if found is None else found.tolist())
    right = (guessed & Counter(labels.tolist())).total()
    return InferredLabels(right, len(labels))


def compare_losses(
    observation: Observation,
    data: ImageSet,
    own: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor] | None,
) -> OwnMembership | None:
    """How far the update lowers the loss of the client's images, and of others.

    ``own`` and ``others`` are images in [0, 1] and their labels. None if a loss is not finite.
    """
    before = dict(observation.model.state_dict())
    change = observation.update.change
    after = {n: t + change[n].to(t) if n in change else t for n, t in before.items()}
    weights = (before, after)
    own_before, own_after = compute_losses(observation.model, weights, data, *own)
    if not (own_before.isfinite().all() and own_after.isfinite().all()):
        return None
    area, count = None, 0
    if others is not None and len(others[0]):
        other_before, other_after = compute_losses(observation.model, weights, data, *others)
        drops = (other_before - other_after).nan_to_num(nan=-torch.inf)
        area, count = round(auc(own_before - own_after, drops), 4), len(drops)
    return OwnMembership(
        loss_before=round(float(own_before.mean()), 4),
        loss_after=round(float(own_after.mean()), 4),
        own=len(own_before),
        others=count,
        auc=area,
    )


@torch.no_grad()
def compute_losses(
    model: nn.Module,
    weights: tuple[dict[str, Tensor], ...],
    data: ImageSet,
    images: Tensor,
    labels: Tensor,
) -> list[Tensor]:
    """The cross-entropy ``[n]`` of the images under each of ``weights``, in evaluation mode.

    A slow model sees only the first n images, as many as the time allows.
    """
    like = next(model.parameters())
    losses: list[list[Tensor]] = [[] for _ in weights]
    start, size, deadline = 0, FIRST_CHUNK, time.monotonic() + SECONDS
    while start < len(images) and (start == 0 or time.monotonic() < deadline):
        chunk = slice(start, start + size)
        inputs, truth = data.normalise(images[chunk]).to(like), labels[chunk].to(like.device)
        for each, found in zip(weights, losses, strict=True):
            logits = functional_call(model, each, (inputs,))
            found.append(cross_entropy(logits.double(), truth, reduction="none"))
        start, size = start + size, min(2 * size, MAX_CHUNK)
    return [torch.cat(found).cpu() for found in losses]
