"""A variational bottleneck before a network's last linear layer (PRECODE).

The features f become a distribution, ``N(mean, deviation^2)`` in fewer dimensions, of which one
sample ``mean + deviation * noise`` is decoded to features that the last layer gets in their place.
The bottleneck is a child of that layer, so that all other parameters keep their names.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, handle_torch_function, has_torch_function

from keyhole.seeds import derive, seeded_globally

CHILD_NAME = "bottleneck"
"""The name of the child that the last layer gets."""


def draw_noise(like: Tensor) -> Tensor:
    """Draws N(0, 1) in the shape of ``like`` from torch's global generator.

    Modes of :mod:`keyhole.models.dropout_sites` record it, or set it.
    """
    if has_torch_function((like,)):
        found: Tensor = handle_torch_function(draw_noise, (like,), like)
        return found
    return torch.randn_like(like)


def add_to_loss(terms: Tensor) -> None:
    """Tells whoever computes a loss what the network adds to it: one value per sample, ``[B]``."""
    if has_torch_function((terms,)):
        handle_torch_function(add_to_loss, (terms,), terms)


class LossCollector(TorchFunctionMode):
    """Collects what networks that run under it add to their loss."""

    def __init__(self) -> None:
        super().__init__()
        self.terms: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is add_to_loss:
            self.terms.append(args[0])
            return None
        return func(*args, **(kwargs or {}))


class Bottleneck(nn.Module):
    """Encodes features ``[B, F]`` as a distribution and decodes a sample of it.

    Unless :attr:`samples`, the mean is decoded: so do servers that evaluate the model.

    Args:
        features: F.
        width: The dimensions of the distribution.
    """

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(features, 2 * width)
        self.decoder = nn.Linear(width, features)
        self.samples = False
        self.divergence_weight = 0.0
        """Weight of the distribution's divergence from N(0, 1) in the loss."""

    def forward(self, features: Tensor) -> Tensor:
        mean, log_variance = self.encoder(features).chunk(2, dim=-1)
        if not (self.samples and self.training):
            return cast(Tensor, self.decoder(mean))
        if self.divergence_weight:
            divergence = (mean.square() + log_variance.exp() - log_variance - 1) / 2
            add_to_loss(self.divergence_weight * divergence.flatten(1).sum(1))
        noise = draw_noise(mean)
        return cast(Tensor, self.decoder(mean + (log_variance / 2).exp() * noise))


class VariationalLinear(nn.Linear):
    """A linear layer whose inputs pass a bottleneck first."""

    bottleneck: Bottleneck

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        return F.linear(self.bottleneck(input), self.weight, self.bias)


def find_last_linear(model: nn.Module) -> str | None:
    """The name of the linear layer that is listed last; None if there is none.

    >>> find_last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)))
    '2'
    """
    names = [name for name, module in model.named_modules() if is_plain_linear(name, module)]
    return names[-1] if names else None


def is_plain_linear(name: str, module: nn.Module) -> bool:
    inside = CHILD_NAME in name.split(".")
    return type(module) in (nn.Linear, VariationalLinear) and not inside


def add_bottleneck(model: nn.Module, width: int) -> nn.Module:
    """Returns a copy of ``model`` with a bottleneck before its last linear layer.

    Args:
        model: A model that has a linear layer and no bottleneck.
        width: The dimensions of the bottleneck.
    """
    result = copy.deepcopy(model)
    name = find_last_linear(result)
    assert name is not None
    head = cast(nn.Linear, result.get_submodule(name))
    with seeded_globally(derive(0, CHILD_NAME)):
        bottleneck = Bottleneck(head.in_features, width)
    head.__class__ = VariationalLinear
    head.add_module(CHILD_NAME, bottleneck.to(head.weight).train(head.training))
    return result


def find_bottleneck(model: nn.Module) -> Bottleneck | None:
    """The model's bottleneck, if it has one."""
    return next((m for m in model.modules() if isinstance(m, Bottleneck)), None)
