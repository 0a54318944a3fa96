"""How a client trains: the recipe that server and clients share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.errors import DoesNotFit
from keyhole.models.modes import ClientMode

Optimiser = Literal["sgd", "adam"]


@dataclass(frozen=True)
class LocalTraining:
    """``epochs`` over the client's images in batches of ``batch_size``, or so many ``steps``.

    Without a batch size every step takes all images, in order. Without ``lr`` the client shares
    the gradient of one step itself. ``clip`` bounds the norm of every step's gradient; ``augment``
    flips and shifts the images anew in every step.
    """

    steps: int = 1
    lr: float | None = None
    mode: ClientMode = "train"
    epochs: int | None = None
    batch_size: int | None = None
    optimiser: Optimiser = "sgd"
    momentum: float = 0.0
    clip: float | None = None
    augment: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or ((self.epochs or self.steps > 1) and self.lr is None):
            raise DoesNotFit("several local steps need a learning rate: pass --lr")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise DoesNotFit(f"a learning rate of {self.lr} teaches nothing: it must be positive")

    def local_batch(self, images: int) -> int:
        """Images in a full batch of a client that has so many."""
        return images if self.batch_size is None else min(self.batch_size, images)

    def batches_an_epoch(self, images: int) -> int:
        """A last batch of a single image joins the one before it: batch statistics need two."""
        size = self.local_batch(images)
        full, rest = divmod(images, size)
        return full + (rest > 1 or (rest == 1 and full == 0))

    def steps_of(self, images: int) -> int:
        """How many steps a client with so many images takes."""
        if self.epochs is None:
            return self.steps
        return self.epochs * self.batches_an_epoch(images)

    def batches(self, images: int, draw: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        """The epoch and the image indices of every step.

        >>> recipe = LocalTraining(lr=0.1, epochs=2, batch_size=2)
        >>> draw = torch.Generator().manual_seed(0)
        >>> [(epoch, len(batch)) for epoch, batch in recipe.batches(5, draw)]
        [(0, 2), (0, 3), (1, 2), (1, 3)]
        """
        count = self.batches_an_epoch(images)
        size = self.local_batch(images)
        cuts = [size * i for i in range(1, count)]
        order = torch.arange(images)
        for step in range(self.steps_of(images)):
            epoch, place = divmod(step, count)
            if place == 0 and count > 1:
                order = torch.randperm(images, generator=draw)
            yield epoch, order.tensor_split(cuts)[place]

    def optimiser_of(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        assert self.lr is not None
        if self.optimiser == "adam":
            return torch.optim.Adam(weights, lr=self.lr)
        return torch.optim.SGD(weights, lr=self.lr, momentum=self.momentum)


def clipped(gradient: list[Tensor], limit: float | None) -> list[Tensor]:
    """A gradient scaled to the norm ``limit`` where it is longer."""
    if limit is None:
        return gradient
    norm = torch.stack([g.norm() for g in gradient]).norm()
    scale = (limit / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
    return [g * scale for g in gradient]


def augmented(images: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """Each image mirrored or not, and shifted by up to an eighth of its side, borders reflected.

    Draws come from torch's global generator, or from ``draw``, one of the images' device.
    """
    count, _, height, width = images.shape
    device = images.device
    mirrored = torch.rand(count, device=device, generator=draw) < 0.5
    images = torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)
    down, across = height // 8, width // 8
    padded = F.pad(images, (across, across, down, down), mode="reflect")
    rows = torch.randint(2 * down + 1, (count, 1), device=device, generator=draw)
    rows = rows + torch.arange(height, device=device)
    columns = torch.randint(2 * across + 1, (count, 1), device=device, generator=draw)
    columns = columns + torch.arange(width, device=device)
    which = torch.arange(count, device=device).view(-1, 1, 1)
    places = (which, rows[:, :, None], columns[:, None, :])
    return padded.permute(0, 2, 3, 1)[places].permute(0, 3, 1, 2)
