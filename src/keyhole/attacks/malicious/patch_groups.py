"""Tells which of the patches that were read belong to the same image."""

from __future__ import annotations

import torch
from torch import Tensor

TOLERANCES = (1e-4, 1e-3)
"""Relative differences up to which slopes count as those of one image; fine ones come first."""


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
    if images == 1:
        owners[choose_one_per_position(slopes.abs(), positions)] = 0
        return owners
    image = 0
    for tolerance in TOLERANCES:
        while image < images:
            group = find_largest_group(slopes, positions, owners < 0, tolerance)
            if len(group) < 2:
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
