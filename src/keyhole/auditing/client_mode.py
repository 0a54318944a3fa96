"""Infers the mode in which a gradient was taken, on which batch norms and dropout depend.

A batch norm that uses its batch's statistics cancels the scale of the layer before it, so that
each of that layer's filters w is orthogonal to its gradient g (up to the norm's epsilon). A batch
norm that uses its running statistics does not. So the gradient alone shows which ones were used.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from keyhole.models.modes import BATCH_NORMS
from keyhole.settings import ClientMode
from keyhole.update import Update

ORTHOGONAL, OBLIQUE = 0.05, 0.25
"""Bounds of the median of ``|cos(w, g)| sqrt(d)`` over filters of d weights: below the first, batch
statistics were used; above the second, they were not. For random vectors it is 0.67."""


def has_running_statistics(model: nn.Module) -> bool:
    """Whether the model has batch norms that keep running statistics."""
    norms = (module for module in model.modules() if isinstance(module, BATCH_NORMS))
    return any(norm.running_mean is not None for norm in norms)


def detect_batch_statistics(model: nn.Module, update: Update) -> bool | None:
    """Whether batch norms used the batch's statistics; None if the gradient does not show it.

    >>> layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    >>> def gradient():
    ...     loss = layers(torch.rand(8, 1, 3, 3)).square().sum()
    ...     return torch.autograd.grad(loss, list(layers.parameters()))
    >>> layers = layers.train()
    >>> detect_batch_statistics(layers, Update.from_gradient(gradient(), model=layers))
    True

    Args:
        model: The model at which the gradient was taken.
        update: The client's update, unchanged by any defense.
    """
    gradient = update.gradient()
    found = [
        compute_scaled_cosines(weight, gradient[name])
        for name, weight in find_weights_before_norms(model).items()
        if name in gradient
    ]
    if not found:
        return None
    median = float(torch.cat(found).median())
    return True if median < ORTHOGONAL else False if median > OBLIQUE else None


def find_weights_before_norms(model: nn.Module) -> dict[str, Tensor]:
    """The weights of layers that are followed by a batch norm with as many channels."""
    found = {}
    for (name, layer), (_, norm) in pairwise(model.named_modules()):
        weight = getattr(layer, "weight", None)
        if not (isinstance(norm, BATCH_NORMS) and isinstance(weight, Tensor) and weight.ndim > 1):
            continue
        if weight.shape[0] == norm.num_features:
            found[f"{name}.weight"] = weight.detach()
    return found


def compute_scaled_cosines(weight: Tensor, gradient: Tensor) -> Tensor:
    """``|cos(w, g)| sqrt(d)`` for each filter ``[d]`` whose gradient is not zero."""
    w, g = weight.flatten(1).double().cpu(), gradient.flatten(1).double().cpu()
    norms = w.norm(dim=1) * g.norm(dim=1)
    alive = norms > 0
    cosines: Tensor = (w * g).sum(1).abs()[alive] / norms[alive]
    return cosines * math.sqrt(w.shape[1])


def choose_mode(*, batch_statistics: bool, norms: bool, drops: bool) -> ClientMode:
    """The client mode that matches what is known.

    Args:
        batch_statistics: Whether batch norms used the batch's statistics.
        norms: Whether the model has batch norms.
        drops: Whether dropout is taken to have been active.
    """
    if norms:
        return "train" if batch_statistics else "frozen-norm" if drops else "eval"
    return "train" if drops else "eval"
