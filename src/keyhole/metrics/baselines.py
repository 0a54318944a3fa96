"""Baselines: what an attacker without the update would show. A real leak must beat them."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.metrics.gallery import signature


def mean_images(public: Tensor, count: int) -> Tensor:
    """The average public image, repeated.

    Args:
        public: Public images, ``[n, C, H, W]``.
        count: The number of copies.
    """
    return public.mean(0, keepdim=True).expand(count, -1, -1, -1)


def noise_images(shape: tuple[int, int, int], count: int, generator: torch.Generator) -> Tensor:
    """Uniform noise in [0, 1], ``[count, C, H, W]``.

    Args:
        shape: Shape of an image, ``(C, H, W)``.
        count: The number of images.
        generator: Draws the noise.
    """
    return torch.rand(count, *shape, generator=generator)


def nearest_public_images(
    public: Tensor, truth: Tensor, signatures: Tensor | None = None
) -> Tensor:
    """For each true image the most similar public image: the best guess without an update.

    Args:
        public: Public images, ``[n, C, H, W]``.
        truth: True images, ``[B, C, H, W]``.
        signatures: Signatures of the public images, if they are known already.
    """
    known = signature(public) if signatures is None else signatures
    return public[(signature(truth) @ known.T).argmax(1)]
