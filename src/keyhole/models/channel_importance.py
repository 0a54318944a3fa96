"""How much a network's logits depend on each channel of its convolutions: Grad-CAM's weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from keyhole.seeds import seeded_globally

IMAGES_PER_PASS = 128
"""Images per forward pass."""
ROUNDING = 1e-9


def convolutions(model: nn.Module) -> dict[str, nn.Conv2d]:
    """Returns the 2-d convolutions by name whose weight is a parameter, in the model's order."""
    own = dict(model.named_parameters(remove_duplicate=False))
    found = {name: m for name, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    return {name: conv for name, conv in found.items() if weight_name(name) in own}


def weight_name(layer: str) -> str:
    """Returns the name of a layer's weight; the model itself is the layer with an empty name."""
    return f"{layer}.weight" if layer else "weight"


def channel_importance(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, change: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Returns Grad-CAM's weight of every output channel ``H_k`` of each convolution.

        alpha_k = mean over samples of mean over places of d y_c / d H_k,

    float64 ``[K]``, where y_c is the logit of the sample's own class (Selvaraju et al. 2017).
    ``inputs`` are the model's, ``[n, C, H, W]``. The model is run in evaluation mode, with weights
    ``w + change`` if ``change`` is given, and is itself not changed. One backward pass serves all
    layers: samples do not mix in evaluation mode, and no gradient of a weight is computed. A layer
    that the logits do not depend on has zeros.
    """
    probe = apply_change(model, change).eval().requires_grad_(False)
    device = inputs.device
    found = {
        name: torch.zeros(conv.out_channels, dtype=torch.double, device=device)
        for name, conv in convolutions(probe).items()
    }
    for name, total in found.items():
        probe.get_submodule(name).register_forward_hook(make_adding_hook(total))
    with torch.enable_grad(), seeded_globally(0):
        for x, y in zip(
            torch.split(inputs, IMAGES_PER_PASS), torch.split(labels, IMAGES_PER_PASS), strict=True
        ):
            # A leaf may not be changed in place, as a first layer might do.
            leaf = x.detach().clone().requires_grad_(True)
            logits = probe(leaf.clone())
            score = logits.gather(1, y.to(device).view(-1, 1)).sum()
            torch.autograd.grad(score, leaf)
    return {name: total / len(inputs) for name, total in found.items()}


def make_adding_hook(total: Tensor) -> Callable[[nn.Module, object, Tensor], None]:
    """Returns a hook that adds the gradient at a layer's output to ``total [K]``.

    Hooks on tensors see the gradient before a later layer changes the output in place.
    """

    def hook(module: nn.Module, args: object, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(add)  # type: ignore[no-untyped-call]

    def add(gradient: Tensor) -> None:
        total.add_(gradient.mean((-2, -1)).double().sum(0))

    return hook


def apply_change(model: nn.Module, change: Mapping[str, Tensor] | None) -> nn.Module:
    """Returns a copy of the model with weights and buffers ``w + change``."""
    probe = copy.deepcopy(model)
    if change is not None:
        own = probe.state_dict()
        after = {name: own[name] + step.to(own[name]) for name, step in change.items()}
        probe.load_state_dict(after, strict=False)
    return probe


def count_channels(channels: int, ratio: float) -> int:
    """Returns a fraction of the channels as a number: ``max(1, floor(ratio * channels))``.

    >>> count_channels(64, 0.1), count_channels(3, 0.1), count_channels(100, 0.29)
    (6, 1, 29)
    """
    return max(1, int(ratio * channels + ROUNDING))


def top_channels(importance: Tensor, ratio: float, *, absolute: bool = False) -> Tensor:
    """Returns the indices of the most important channels, greatest weight first, on the CPU.

    >>> top_channels(torch.tensor([0.1, -3.0, 0.2, 0.0]), 0.5)
    tensor([2, 0])
    """
    weights = importance.abs() if absolute else importance
    order = weights.cpu().sort(descending=True, stable=True).indices
    return order[: count_channels(len(weights), ratio)]
