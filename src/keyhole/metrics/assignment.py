"""Assigns reconstructions to the images of a batch."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def assign_reconstructions(found: Tensor, truth: Tensor) -> Tensor:
    """The assignment of least total squared error (Hungarian method).

    Args:
        found: Reconstructions, ``[n, C, H, W]``; each is used at most once.
        truth: True images, ``[B, C, H, W]``.

    Returns:
        For each true image the index of its reconstruction, -1 if there is none: ``[B]``.

    >>> truth = torch.eye(3).view(3, 1, 1, 3)
    >>> assign_reconstructions(truth[[2, 0]], truth).tolist()
    [1, -1, 0]
    """
    cost = torch.cdist(truth.double().flatten(1), found.double().flatten(1)).square()
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    assignment = torch.full((len(truth),), -1)
    assignment[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return assignment
