"""Which reconstruction belongs to which image of a batch."""

from __future__ import annotations

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor


def match(found: Tensor, truth: Tensor) -> Tensor:
    """For each true image the index of its reconstruction, -1 where there is none: ``[B]``.

    The assignment of least total squared error (Hungarian method); no reconstruction is used twice.

    >>> truth = torch.eye(3).view(3, 1, 1, 3)
    >>> match(truth[[2, 0]], truth).tolist()
    [1, -1, 0]
    """
    cost = torch.cdist(truth.double().flatten(1), found.double().flatten(1)).square()
    rows, columns = linear_sum_assignment(cost.cpu().numpy())
    chosen = torch.full((len(truth),), -1)
    chosen[torch.as_tensor(rows)] = torch.as_tensor(columns)
    return chosen
