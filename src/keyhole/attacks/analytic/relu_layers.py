"""Fully connected layers with a ReLU behind them, found by running a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from keyhole.models.anatomy import Shape, cache_per_model
from keyhole.seeds import generator

PROBES = 16
"""Random images by which the layers are found."""
MIN_ZERO_SHARE = 0.02
"""The least share of units that are off if the activation is a ReLU."""


@cache_per_model
@torch.enable_grad()
def find_relu_layers(model: nn.Module, shape: Shape) -> tuple[str, ...]:
    """Linear layers whose output gradient is zero exactly where their output is not positive.

    Only layers that see one row for each image count, in the order in which they run. A layer that
    runs twice does not count.

    Args:
        model: The model; hooks are set and removed again.
        shape: The shape of its images, ``(C, H, W)``.
    """
    outputs: dict[str, list[Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            handles.append(module.register_forward_hook(_add_leaf(name, outputs)))
    like = next(model.parameters())
    images = torch.randn(PROBES, *shape, generator=generator(0, "relu layers")).to(like)
    try:
        logits = model(images)
    finally:
        for handle in handles:
            handle.remove()
    single = {name: found[0] for name, found in outputs.items() if len(found) == 1}
    leaves = {name: leaf for name, leaf in single.items() if leaf.ndim == 2}
    if not leaves:
        return ()
    draw = torch.randn(logits.shape, generator=generator(0, "relu directions")).to(logits)
    found = torch.autograd.grad((logits * draw).sum(), list(leaves.values()), allow_unused=True)
    pairs = zip(leaves.items(), found, strict=True)
    return tuple(name for (name, z), g in pairs if g is not None and _is_rectified(z.detach(), g))


def _add_leaf(
    name: str, outputs: dict[str, list[Tensor]]
) -> Callable[[nn.Module, object, Tensor], Tensor]:
    """A hook that adds zeros to a layer's output; their gradient is the one at the output."""

    def hook(module: nn.Module, args: object, output: Tensor) -> Tensor:
        leaf = output.detach().requires_grad_()
        outputs.setdefault(name, []).append(leaf)
        return output + (leaf - leaf.detach())

    return hook


def _is_rectified(output: Tensor, gradient: Tensor) -> bool:
    """Whether the gradient is zero exactly where the output is not positive."""
    off = output <= 0
    dead = (gradient == 0).all(0)  # nothing behind reads these units
    agree = ((gradient == 0) == off)[:, ~dead]
    return bool(agree.numel() and agree.all() and off.float().mean() > MIN_ZERO_SHARE)


@contextmanager
def _replace_input(module: nn.Module, inputs: Tensor, outputs: list[Tensor]) -> Iterator[None]:
    """Makes a layer see ``inputs``, and records its output as a leaf of the graph."""

    def give(module: nn.Module, args: object) -> tuple[Tensor]:
        return (inputs,)

    def record(module: nn.Module, args: object, output: Tensor) -> Tensor:
        outputs.append(output.detach().requires_grad_())
        return outputs[-1].clone()

    handles = module.register_forward_pre_hook(give), module.register_forward_hook(record)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.enable_grad()
def gradients_by_class(model: nn.Module, layer: str, inputs: Tensor, shape: Shape) -> Tensor:
    """The gradient of the cross-entropy at a layer's output, if an image were of each class.

    Args:
        model: The model in evaluation mode.
        layer: A linear layer through which every image passes once.
        inputs: The layer's inputs, one row for each image, ``[n, F]``.
        shape: The shape of the model's images.

    Returns:
        ``[classes, n, units]``: ``J^T (softmax - e_c)`` for each class c.
    """
    outputs: list[Tensor] = []
    like = next(model.parameters())
    with _replace_input(model.get_submodule(layer), inputs.to(like), outputs):
        logits = model(torch.zeros(len(inputs), *shape).to(like))
    chances = logits.detach().softmax(1)
    columns = [
        torch.autograd.grad(logits[:, c].sum(), outputs[0], retain_graph=True)[0]
        for c in range(logits.shape[1])
    ]
    jacobian = torch.stack(columns)
    return torch.einsum("cnu,nc->nu", jacobian, chances)[None] - jacobian
