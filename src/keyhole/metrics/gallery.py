"""Re-identification: does a reconstruction point to the right image in a gallery?"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

THUMBNAIL = 32
"""Images are compared at this size at most, because recognition does not need single pixels."""


def signature(images: Tensor) -> Tensor:
    """Thumbnails with mean 0 and length 1, ``[n, features]``: free of brightness and contrast."""
    height, width = (min(side, THUMBNAIL) for side in images.shape[-2:])
    small = F.adaptive_avg_pool2d(images.double(), (height, width)).flatten(1)
    centred = small - small.mean(1, keepdim=True)
    unit: Tensor = centred / centred.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return unit


def reidentify(found: Tensor, gallery: Tensor, truth_index: Tensor) -> Tensor:
    """Whether the most correlated gallery image is the true one, as 1 or 0 per image: ``[n]``.

    Args:
        found: Reconstructions, ``[n, C, H, W]``.
        gallery: The gallery, ``[m, C, H, W]``.
        truth_index: For each reconstruction the index of the true image in the gallery, ``[n]``.

    >>> gallery = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> reidentify(gallery[3:5] * 0.5, gallery, torch.tensor([3, 4]))
    tensor([1., 1.], dtype=torch.float64)
    """
    nearest = nearest_signatures(found, signature(gallery))
    return (nearest == truth_index.to(nearest.device)).double()


def nearest_signatures(found: Tensor, signatures: Tensor) -> Tensor:
    """The index of the most correlated signature for each image, ``[n]``; -1 for a blank image."""
    best = (signature(found) @ signatures.T).max(1)
    return torch.where(best.values > 0, best.indices, -1)
