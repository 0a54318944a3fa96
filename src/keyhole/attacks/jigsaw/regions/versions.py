"""Several versions of one image, each shuffled anew: less noise, and nothing else.

Exact versions add nothing. A version is the multiset of each region's blocks, which all versions
share, and an order that is uniform whatever the original is: given one version, the probability
of another is the same for every original that has these blocks. With noise on the pixels (versions
read out of gradients) each holds the same blocks once more, and their mean has less of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.regions.blocks import by_content, pools, taken
from keyhole.defenses.regions import compute_region_variances
from keyhole.errors import BadValue

ROUNDS = 2
"""Blocks are matched with the first version's, then with the mean's, which are less noisy."""


def combined(versions: Tensor, *, block: int | None = None) -> Tensor:
    """One version ``[B, C, H, W]`` out of ``versions [K, B, C, H, W]``, in the first one's order.

    Blocks are matched by their content within each region and plane, and averaged. Exact versions
    give back the first as it is.
    """
    if versions.ndim != 5 or not len(versions):
        raise BadValue(f"combined takes versions [K, B, C, H, W], not {list(versions.shape)}")
    first, others = versions[0], versions[1:]
    if not len(others):
        return first
    fine = sensitive_together(versions)
    found = first
    for _ in range(ROUNDS):
        moved = [
            taken(other, by_content(other, found, pools(other, fine, block))) for other in others
        ]
        found = first + torch.stack([other - first for other in moved]).sum(0) / len(versions)
    return found


def sensitive_together(versions: Tensor) -> Tensor:
    """Which regions have the finer blocks, by the mean of the versions' variances.

    Noise may lift one version's region above the median, hardly their mean.

    bool ``[B, rows, columns]``.
    """
    spread = torch.stack([compute_region_variances(version) for version in versions]).mean(0)
    ranked = spread.flatten(1).sort(1).values
    count = ranked.shape[1]
    median = (ranked[:, (count - 1) // 2] + ranked[:, count // 2]) / 2
    return spread > median[:, None, None]
