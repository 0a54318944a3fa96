"""What an update tells of the client's labels, and of which images it was made of."""

from __future__ import annotations

import time
from collections import Counter

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from keyhole.attacks import LabelInference
from keyhole.auditing.self_check import InferredLabels, OwnMembership
from keyhole.data import ImageSet
from keyhole.metrics.membership import auc
from keyhole.threat import Observation

AT_ONCE = 256
"""Images that go through the model at once, at most; the first are few, as they may take long."""
FIRST = 4
SECONDS = 2.0
"""How long losses of the client's images, and then of others, may take; the rest is left out."""


def infer_labels(seen: Observation, labels: Tensor) -> InferredLabels | None:
    """How many labels the `labels` attack gets right; None where it does not apply."""
    attack = LabelInference()
    if attack.incompatibilities(seen) or attack.reads(seen) - set(seen.update.change):
        return None
    found = attack(seen).labels
    guessed = Counter([] if found is None else found.tolist())
    right = (guessed & Counter(labels.tolist())).total()
    return InferredLabels(right, len(labels))


def compare_losses(
    seen: Observation,
    data: ImageSet,
    own: tuple[Tensor, Tensor],
    others: tuple[Tensor, Tensor] | None,
) -> OwnMembership | None:
    """How far the update lowers the loss of the client's images, and of others.

    Images are in [0, 1], each beside its label. None where a loss is not finite.
    """
    before = dict(seen.model.state_dict())
    change = seen.update.change
    after = {n: t + change[n].to(t) if n in change else t for n, t in before.items()}
    first, then = losses(seen.model, (before, after), data, *own)
    if not (first.isfinite().all() and then.isfinite().all()):
        return None
    area, rest = None, 0
    if others is not None and len(others[0]):
        fell = losses(seen.model, (before, after), data, *others)
        dropped = (fell[0] - fell[1]).nan_to_num(nan=-torch.inf)
        area, rest = auc(first - then, dropped), len(dropped)
    return OwnMembership(
        loss_before=round(float(first.mean()), 4),
        loss_after=round(float(then.mean()), 4),
        own=len(first),
        others=rest,
        auc=None if area is None else round(area, 4),
    )


@torch.no_grad()
def losses(
    model: nn.Module,
    weights: tuple[dict[str, Tensor], ...],
    data: ImageSet,
    images: Tensor,
    labels: Tensor,
) -> list[Tensor]:
    """The cross-entropy ``[n]`` of the images under each of ``weights``, in evaluation mode.

    A model that is slow is shown the first n of the images, as many as the time allows.
    """
    like = next(model.parameters())
    found: list[list[Tensor]] = [[] for _ in weights]
    start, size, ends = 0, FIRST, time.monotonic() + SECONDS
    while start < len(images) and (start == 0 or time.monotonic() < ends):
        some = slice(start, start + size)
        inputs, truth = data.normalise(images[some]).to(like), labels[some].to(like.device)
        for each, kept in zip(weights, found, strict=True):
            logits = functional_call(model, each, (inputs,))
            kept.append(cross_entropy(logits.double(), truth, reduction="none"))
        start, size = start + size, min(2 * size, AT_ONCE)
    return [torch.cat(kept).cpu() for kept in found]
