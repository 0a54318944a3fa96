"""What an attacker would score who saw nothing: any real leak must beat these."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.metrics.gallery import signature


def mean_image(public: Tensor, count: int) -> Tensor:
    """The average public image, ``count`` times."""
    return public.mean(0, keepdim=True).expand(count, -1, -1, -1)


def noise(shape: tuple[int, int, int], count: int, generator: torch.Generator) -> Tensor:
    """Uniform noise over [0, 1]."""
    return torch.rand(count, *shape, generator=generator)


def nearest_public(public: Tensor, truth: Tensor, signatures: Tensor | None = None) -> Tensor:
    """For each true image the public one most like it: the luckiest guess without a gradient.

    ``signatures`` of the public images save time where they are known.
    """
    known = signature(public) if signatures is None else signatures
    return public[(signature(truth) @ known.T).argmax(1)]
