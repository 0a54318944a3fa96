"""How far a network's answer to an image changes when the image's patches are shuffled."""

from __future__ import annotations

import torch
from torch import Tensor

from keyhole.errors import DoesNotFit


def difference_norm(
    features: Tensor, shuffled_features: Tensor, *, squared: bool = False
) -> Tensor:
    """``|f(x) - f(x~)|`` for each image, ``[n]``; the MJP paper writes it squared, its code not.

    Args:
        features: ``[n, ...]``: one vector per image, or several, which are taken together.
        shuffled_features: The same of the shuffled images.
        squared: As the paper writes it.

    >>> difference_norm(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([5.], dtype=torch.float64)
    """
    check_shapes(features, shuffled_features)
    gap = (features.double() - shuffled_features.double()).flatten(1)
    norm: Tensor = torch.linalg.vector_norm(gap, dim=1)
    return norm.square() if squared else norm


def consistency(logits: Tensor, shuffled_logits: Tensor) -> float:
    """The share of images whose predicted class stays the same.

    Args:
        logits: ``[n, classes]``.
        shuffled_logits: The same of the shuffled images.

    >>> consistency(torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    0.5
    """
    check_shapes(logits, shuffled_logits)
    return float((logits.argmax(1) == shuffled_logits.argmax(1)).double().mean())


def check_shapes(one: Tensor, other: Tensor) -> None:
    """Raises :class:`DoesNotFit` unless both hold a row for each of the same images."""
    if one.shape != other.shape or one.ndim < 2 or not len(one):
        raise DoesNotFit(
            f"cannot compare answers of shapes {tuple(one.shape)} and {tuple(other.shape)}: "
            "both must hold a row for each image"
        )
