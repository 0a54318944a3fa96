"""How far a federated network overfits, and whom its loss gives away."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import ImageSet
from keyhole.metrics import auc
from keyhole_studies.resident_data import ResidentData, iterate_batches

MOST = 2000
"""Members, and as many others, at most."""


def measure_overfitting(model: nn.Module, resident: ResidentData) -> dict[str, Any]:
    """Accuracy on members and on others, and the AUC of an attacker who looks at the loss.

    Members are training images of all clients, others are test images; both are shown as they are.

    Args:
        model: Keeps its mode.
        resident: The data.
    """
    count = min(MOST, len(resident.train_indices), len(resident.test_indices))
    was_training = model.training
    model.eval()
    inside, right_inside = judge(model, resident.data, resident.train_indices[:count])
    outside, right_outside = judge(model, resident.test, resident.test_indices[:count])
    model.train(was_training)
    return {
        "members": count,
        "others": count,
        "members_accuracy": right_inside,
        "others_accuracy": right_outside,
        "gap": right_inside - right_outside,
        "auc": auc(-inside, -outside),
    }


@torch.no_grad()
def judge(model: nn.Module, data: ImageSet, indices: Sequence[int]) -> tuple[Tensor, float]:
    """Each image's loss, ``[n]`` in float64, and the share that is classified right."""
    losses, right = [], 0
    for images, labels in iterate_batches(data, indices, next(model.parameters())):
        logits = model(data.normalise(images)).double()
        losses.append(F.cross_entropy(logits, labels, reduction="none").cpu())
        right += int((logits.argmax(1) == labels).sum())
    return torch.cat(losses), right / len(indices)
