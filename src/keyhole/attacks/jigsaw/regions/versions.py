"""Several versions of one image, each shuffled differently: they reduce noise, and nothing else.

Exact versions add nothing. A version is the multiset of each region's blocks, which all versions
share, and an order that is uniform for every original: given one version, the probability of
another is the same for every original that has these blocks. With noise on the pixels (versions
read out of gradients) each holds the same blocks once more, and their mean has less noise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.regions.blocks import find_sources, group_regions, take_pixels
from keyhole.defenses.regions import compute_region_variances
from keyhole.errors import BadValue

ROUNDS = 2
"""Blocks are matched with those of the first version, then of the mean, which has less noise."""


def combine_versions(versions: Tensor, *, block: int | None = None) -> Tensor:
    """Makes one version ``[B, C, H, W]`` of several, in the order of the first.

    Blocks are matched by their content within each region and plane, and averaged. Exact versions
    give back the first as it is.

    Args:
        versions: ``[K, B, C, H, W]``.
        block: The side of all blocks, if they have one size everywhere.
    """
    if versions.ndim != 5 or not len(versions):
        raise BadValue(
            f"combine_versions takes versions [K, B, C, H, W], not {list(versions.shape)}"
        )
    first, others = versions[0], versions[1:]
    if not len(others):
        return first
    fine = find_sensitive_by_mean(versions)
    mean = first
    for _ in range(ROUNDS):
        reordered = [
            take_pixels(other, find_sources(other, mean, group_regions(other, fine, block)))
            for other in others
        ]
        mean = first + torch.stack([other - first for other in reordered]).sum(0) / len(versions)
    return mean


def find_sensitive_by_mean(versions: Tensor) -> Tensor:
    """Which regions have the finer blocks, bool ``[B, rows, columns]``.

    By the mean of the versions' variances: noise may lift one version's region above the median,
    but hardly their mean.
    """
    spread = torch.stack([compute_region_variances(version) for version in versions]).mean(0)
    ranked = spread.flatten(1).sort(1).values
    count = ranked.shape[1]
    median = (ranked[:, (count - 1) // 2] + ranked[:, count // 2]) / 2
    return spread > median[:, None, None]
