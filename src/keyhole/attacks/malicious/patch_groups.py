"""Tells which of the patches that were read belong to the same image."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

TOLERANCES = (1e-4, 1e-3, 1e-2, 1e-1)
"""Relative differences up to which slopes count as those of one image; fine ones come first."""
LEAST_SHARE = 0.125
"""Of the positions: fewer patches make an image only where larger groups cannot be found."""
MIXED, MIXED_TOLERANCE = 3, 0.05
"""At most so many patches are recognised in one bin, by the sum of their slopes, to this share."""


def group_patches(slopes: Tensor, positions: Tensor, images: int) -> Tensor:
    """Returns the image that each patch belongs to, ``[b]``, -1 where none fits.

    All patches of an image have the same slope, and each has a position of its own. Bins in which
    several patches lie have sums of slopes, which hardly ever agree.

    >>> slopes = torch.tensor([1.0, 2.0, 1.0, 2.0, 3.0])
    >>> group_patches(slopes, torch.tensor([0, 0, 1, 1, 2]), images=2)
    tensor([ 0,  1,  0,  1, -1])

    Args:
        slopes: The slope of the loss with which each was read, ``[b]``.
        positions: The patches' positions, ``[b]``.
        images: How many images there are.
    """
    owners = torch.full_like(positions, -1)
    if images == 1 or not len(positions):
        owners[choose_one_per_position(slopes.abs(), positions)] = 0
        return owners
    image, least = 0, max(2, int(LEAST_SHARE * (int(positions.max()) + 1)))
    for tolerance, smallest in [*((each, least) for each in TOLERANCES), (TOLERANCES[1], 2)]:
        while image < images:
            group = find_largest_group(slopes, positions, owners < 0, tolerance)
            if len(group) < smallest:
                break
            owners[group] = image
            image += 1
    return owners


def find_largest_group(slopes: Tensor, positions: Tensor, free: Tensor, tolerance: float) -> Tensor:
    """Returns the free patches ``[g]`` of most positions whose slopes agree."""
    best = torch.zeros(0, dtype=torch.long)
    candidates = torch.nonzero(free)[:, 0]
    own = slopes[candidates]
    for slope in own.tolist():
        gaps = (own - slope).abs() / (abs(slope) + 1e-300)
        near = gaps <= tolerance
        group = candidates[near][choose_one_per_position(-gaps[near], positions[candidates[near]])]
        best = group if len(group) > len(best) else best
    return best


def choose_one_per_position(scores: Tensor, positions: Tensor) -> Tensor:
    """Returns the number of the reading with the highest score at each position."""
    order = scores.argsort()
    chosen = {int(positions[i]): int(i) for i in order}
    return torch.tensor(sorted(chosen.values()), dtype=torch.long, device=positions.device)


def find_shared_bins(slopes: Tensor, positions: Tensor, owners: Tensor) -> Tensor:
    """Returns which bins ``[b]`` hold a mean of patches of which images, bool ``[images, b]``.

    Such a bin has the sum of these images' slopes, all of one sign, and none of the images has
    another patch at its position.

    >>> slopes = torch.tensor([1.0, 2.0, 1.0, 2.0, 3.0])
    >>> positions, owners = torch.tensor([[0, 0, 1, 1, 2], [0, 1, 0, 1, -1]])
    >>> find_shared_bins(slopes, positions, owners)[:, 4]
    tensor([True, True])

    Args:
        slopes: The slope of the loss with which each bin was read, ``[b]``.
        positions: The bins' positions, ``[b]``.
        owners: What :func:`group_patches` returned.
    """
    images = int(owners.max()) + 1
    own = [float(slopes[owners == image].median()) for image in range(images)]
    shared = torch.zeros(images, len(owners), dtype=torch.bool, device=owners.device)
    for reading in torch.nonzero(owners < 0)[:, 0].tolist():
        slope = float(slopes[reading])
        there = (positions == positions[reading]) & ((owners >= 0) | shared.any(0))
        taken = {*owners[there].tolist(), *torch.nonzero(shared[:, there].any(1))[:, 0].tolist()}
        absent = [i for i in range(images) if i not in taken and own[i] * slope > 0]
        gaps = {
            chosen: abs(sum(own[i] for i in chosen) / slope - 1)
            for size in range(2, MIXED + 1)
            for chosen in combinations(absent, size)
        }
        best = min(gaps, key=lambda chosen: gaps[chosen], default=())
        if best and gaps[best] < MIXED_TOLERANCE:
            shared[list(best), reading] = True
    return shared
