"""The gradient of a batch that a defense made of a client's images."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def compute_mixed_gradient(
    model: nn.Module, inputs: Tensor, labels: Tensor, weights: Tensor
) -> list[Tensor]:
    """The gradient of a batch whose labels are mixtures.

    Args:
        model: The model that the client trains.
        inputs: Model inputs, ``[S, C, H, W]``.
        labels: The labels ``[B]`` that are mixed.
        weights: The share of each label in each input's mixture, ``[S, B]``.
    """
    logits = model(inputs)
    targets = weights.to(logits) @ F.one_hot(labels, logits.shape[1]).to(logits)
    loss = F.cross_entropy(logits, targets)
    return differentiate(loss, model)


def differentiate(loss: Tensor, model: nn.Module) -> list[Tensor]:
    """The gradient of a loss, parameter by parameter; zeros for those frozen or not used.

    Args:
        loss: A number that the model's parameters made.
        model: The model that the client trains.
    """
    every = list(model.parameters())
    trained = [weight for weight in every if weight.requires_grad]
    found = iter(torch.autograd.grad(loss, trained, materialize_grads=True))
    return [next(found) if w.requires_grad else torch.zeros_like(w) for w in every]


def mix_images(inputs: Tensor, weights: Tensor) -> Tensor:
    """Mixtures ``[S, C, H, W]`` of inputs ``[B, C, H, W]`` by weights ``[S, B]``.

    >>> mix_images(torch.tensor([[[[0.0]]], [[[1.0]]]]), torch.tensor([[0.25, 0.75]]))
    tensor([[[[0.7500]]]])
    """
    return torch.einsum("sb,bchw->schw", weights.to(inputs), inputs)
