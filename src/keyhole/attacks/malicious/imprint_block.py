"""The imprint block: a layer before the network that keeps the images of a batch apart."""

from __future__ import annotations

import copy
import copyreg
from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.errors import DoesNotFit

NAME = "imprint"
"""The name of the block in the model that the server sends out."""


class ImprintBlock(nn.Module):
    """Adds one number to all pixels of an image, which a ladder of thresholds measures.

    ``x + mix(act(measure(x)))``. The columns of ``mix`` are equal: the loss has the same slope for
    every row of the ladder that an image fires.

    Args:
        row: The functional that all rows share, ``[D]``.
        thresholds: Where rows begin to fire, ascending, ``[k]``, or ``[k + 1]`` if ``sparse``.
        sparse: Whether a row stops to respond at the next threshold.
        gain: How much brighter an image gets that fires every row.
    """

    def __init__(self, row: Tensor, thresholds: Tensor, *, sparse: bool, gain: float) -> None:
        super().__init__()
        rows = len(thresholds) - sparse
        with torch.device("meta"):  # no initial weights, and no draws from the global generator
            measure, mix = nn.Linear(len(row), rows), nn.Linear(rows, 1, bias=False)
        self.measure = measure.to(row.dtype).to_empty(device=row.device)
        self.mix = mix.to(row.dtype).to_empty(device=row.device)
        self.widths: Tensor | None
        self.register_buffer("widths", thresholds.diff() if sparse else None, persistent=False)
        with torch.no_grad():
            self.measure.weight.copy_(row.expand(rows, -1))
            self.measure.bias.copy_(-thresholds[:rows])
            self.mix.weight.fill_(gain if sparse else gain / rows)

    @property
    def sparse(self) -> bool:
        """Whether a row stops to respond at the next threshold."""
        return self.widths is not None

    def forward(self, images: Tensor) -> Tensor:
        fired = self.measure(images.flatten(1)).relu()
        if self.widths is not None:
            fired = fired.minimum(self.widths)
        changed: Tensor = images + self.mix(fired)[:, :, None, None]
        return changed


class _BlockFirst:
    """What a model's class with an imprint block before it has besides its own members."""

    imprint: ImprintBlock

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies by this very class, whatever the model's own class does."""
        return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]


def insert_block(model: nn.Module, block: ImprintBlock) -> nn.Module:
    """Returns a copy of ``model`` that sends its images through ``block`` first.

    All parameters of the model keep their names; the block's begin with ``imprint.``.
    """
    if hasattr(model, NAME):
        raise DoesNotFit(f"the model has a part called {NAME!r} already")
    changed = copy.deepcopy(model)
    if isinstance(changed, nn.Sequential):
        return nn.Sequential(OrderedDict([(NAME, block), *changed.named_children()]))
    changed.add_module(NAME, block)
    changed.__class__ = class_with_block(type(model))
    return changed


def class_with_block(base: type[nn.Module]) -> type[nn.Module]:
    """Derives a class from ``base`` whose ``forward`` sends its images through a block first."""
    if base not in _classes:

        def forward(self: Any, images: Tensor, *args: Any, **options: Any) -> Any:
            return base.forward(self, self.imprint(images), *args, **options)

        members = {"forward": forward, "__module__": __name__}
        _classes[base] = type(f"Imprinted{base.__name__}", (_BlockFirst, base), members)
    return _classes[base]


_classes: dict[type[nn.Module], type[nn.Module]] = {}
