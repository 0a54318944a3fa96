"""The model under examination: its tensors, and a network with them if the client has its code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet

Tensors = Mapping[str, Tensor]

HEADS = re.compile(r"(^|\.)(head|fc|classifier|logits|last|output|out)(\.|$)")
"""What last layers are called; used only if there is no network to ask."""
IMAGES = 64
"""Own images that the network is shown."""


@dataclass(frozen=True)
class Layer:
    """A linear layer or a convolution.

    Args:
        name: Its name in the model.
        rows: Its weight, one row per unit or filter, ``[out, in]``, float32.
        is_linear: Whether it is no convolution.
    """

    name: str
    rows: Tensor
    is_linear: bool


@dataclass(frozen=True)
class IncomingModel:
    """What the checks look at.

    Args:
        weights: The tensors that the server sent, all finite.
        own: The tensors of the client's model as its own code builds it; None without a model.
        network: The client's model with the server's weights, in evaluation mode; None if there
            is no model or the weights do not fit it.
        last: The name of the layer that computes the logits; None if it is not known.
        inputs: Model inputs ``[n, C, H, W]`` to look at units with: the client's images or noise.
        previous: The tensors of the round before, if the client kept them.
    """

    weights: Tensors
    own: Tensors | None = None
    network: nn.Module | None = None
    last: str | None = None
    inputs: Tensor | None = None
    previous: Tensors | None = None

    def layers(self) -> Iterator[Layer]:
        """Yields all linear layers and convolutions."""
        for name, tensor in self.weights.items():
            if is_matrix(name, tensor):
                rows = tensor.detach().float().flatten(1)
                yield Layer(name.removesuffix(".weight"), rows, is_linear=tensor.ndim == 2)

    def bias(self, layer: str, rows: int) -> Tensor | None:
        """Returns a layer's bias ``[rows]``, if it has one."""
        found = self.weights.get(f"{layer}.bias" if layer else "bias")
        return None if found is None or found.shape != (rows,) else found.detach().float()

    def starts_so(self, layer: str, test: Callable[[Tensor], bool]) -> bool:
        """Returns whether the client's own code, and the round before, give a layer such a weight.

        A model that already holds the server's weights says nothing about the client's own code.

        Args:
            layer: The layer's name.
            test: Says whether a weight has the property in question.
        """
        if self.own is None or are_equal(self.own, self.weights):
            return False
        name = f"{layer}.weight" if layer else "weight"
        trusted = [self.own] if self.previous is None else [self.own, self.previous]
        return all(name in tensors and test(tensors[name]) for tensors in trusted)

    def last_layer(self) -> Layer | None:
        """Returns the layer that computes the logits, if it is known or can be guessed."""
        name = guess_last_layer(self.weights) if self.last is None else self.last
        return next((layer for layer in self.layers() if layer.name == name), None)


def are_equal(one: Tensors, other: Tensors) -> bool:
    """Returns whether two models have the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Returns whether a tensor is the weight of a linear layer or a convolution."""
    return name.endswith("weight") and tensor.ndim > 1 and tensor.is_floating_point()


def guess_last_layer(weights: Tensors) -> str | None:
    """Guesses the last layer by the names of the linear layers.

    >>> guess_last_layer({"1.weight": torch.ones(4, 9), "10.weight": torch.ones(2, 4)})
    '10'
    """
    layers = [
        name.removesuffix(".weight")
        for name, tensor in weights.items()
        if is_matrix(name, tensor) and tensor.ndim == 2 and name.endswith(".weight")
    ]
    return max(layers, key=lambda n: (HEADS.search(n) is not None, sort_key(n)), default=None)


def sort_key(name: str) -> list[tuple[int, str]]:
    """Returns a key by which ``layer10`` comes after ``layer9``."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def norms_of(rows: Tensor) -> Tensor:
    """Returns the length of each row ``[k]``."""
    return rows.square().sum(1).sqrt()


def choose_images(data: ImageSet) -> list[int]:
    """Returns the numbers of at most :data:`IMAGES` images, from all parts of a set."""
    return torch.linspace(0, len(data) - 1, min(IMAGES, len(data))).long().tolist()
