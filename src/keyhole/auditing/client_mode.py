"""In which mode a gradient was taken, where nobody says: batch norms and dropout differ by it.

A batch norm that goes by its batch's statistics cancels the scale of the layer before it, so that
each of that layer's filters w is orthogonal to its gradient g (but for the norm's epsilon). One
that keeps to its running statistics does not. So a bare gradient tells which it was.
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
"""Median of ``|cos(w, g)| sqrt(d)`` over filters of d weights, up to which batch statistics were
used, and from which they were not. Of random vectors it is 0.67."""


def keeps_statistics(model: nn.Module) -> bool:
    """Whether the model has batch norms that may go by running statistics."""
    norms = (module for module in model.modules() if isinstance(module, BATCH_NORMS))
    return any(norm.running_mean is not None for norm in norms)


def used_batch_statistics(model: nn.Module, update: Update) -> bool | None:
    """Whether the client's batch norms went by the batch; None where the gradient does not tell.

    >>> layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    >>> def gradient():
    ...     loss = layers(torch.rand(8, 1, 3, 3)).square().sum()
    ...     return torch.autograd.grad(loss, list(layers.parameters()))
    >>> layers = layers.train()
    >>> used_batch_statistics(layers, Update.from_gradient(gradient(), model=layers))
    True

    Args:
        model: The model that the gradient is of.
        update: The client's, which no defense has changed.
    """
    gradient = update.gradient()
    found = [
        scaled_cosines(weight, gradient[name])
        for name, weight in weights_before_norms(model).items()
        if name in gradient
    ]
    if not found:
        return None
    median = float(torch.cat(found).median())
    return True if median < ORTHOGONAL else False if median > OBLIQUE else None


def weights_before_norms(model: nn.Module) -> dict[str, Tensor]:
    """The weights of layers that a batch norm of as many channels follows in the model."""
    found = {}
    for (name, layer), (_, norm) in pairwise(model.named_modules()):
        weight = getattr(layer, "weight", None)
        if not (isinstance(norm, BATCH_NORMS) and isinstance(weight, Tensor) and weight.ndim > 1):
            continue
        if weight.shape[0] == norm.num_features:
            found[f"{name}.weight"] = weight.detach()
    return found


def scaled_cosines(weight: Tensor, gradient: Tensor) -> Tensor:
    """``|cos(w, g)| sqrt(d)`` of each filter ``[d]`` whose gradient is not zero."""
    w, g = weight.flatten(1).double().cpu(), gradient.flatten(1).double().cpu()
    norms = w.norm(dim=1) * g.norm(dim=1)
    alive = norms > 0
    cosines: Tensor = (w * g).sum(1).abs()[alive] / norms[alive]
    return cosines * math.sqrt(w.shape[1])


def choose_mode(*, batch_statistics: bool, norms: bool, drops: bool) -> ClientMode:
    """The mode in which batch norms go by the batch or not, and layers drop or not.

    Args:
        batch_statistics: Whether batch norms go by the batch's statistics.
        norms: Whether the model has batch norms.
        drops: Whether the client is taken to have dropped values.
    """
    if norms:
        return "train" if batch_statistics else "frozen-norm" if drops else "eval"
    return "train" if drops else "eval"
