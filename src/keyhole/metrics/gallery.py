"""Does a reconstruction point to the right person? Re-identification in a gallery."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THUMBNAIL = 32
"""Images are compared at this size at most: recognition does not hang on single pixels."""


def signature(images: Tensor) -> Tensor:
    """Thumbnails with mean 0 and length 1, ``[n, features]``: brightness and contrast drop out."""
    height, width = (min(side, THUMBNAIL) for side in images.shape[-2:])
    small = F.adaptive_avg_pool2d(images.double(), (height, width)).flatten(1)
    centred = small - small.mean(1, keepdim=True)
    unit: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


def reidentified(found: Tensor, gallery: Tensor, truth_index: Tensor) -> Tensor:
    """1 where the gallery image most correlated with ``found`` is the true one, else 0: ``[n]``.

    >>> gallery = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> reidentified(gallery[3:5] * 0.5, gallery, torch.tensor([3, 4]))
    tensor([1., 1.], dtype=torch.float64)
    """
    nearest = most_alike(found, signature(gallery))
    return (nearest == truth_index.to(nearest.device)).double()


def most_alike(found: Tensor, signatures: Tensor) -> Tensor:
    """The index of the most correlated signature for each image; -1 for one that is blank."""
    best = (signature(found) @ signatures.T).max(1)
    return torch.where(best.values > 0, best.indices, -1)
