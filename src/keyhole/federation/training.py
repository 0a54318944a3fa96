"""How a client trains: the settings that server and clients agree on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from keyhole.errors import DoesNotFit
from keyhole.optimisers import LocalOptimiser, read_optimiser
from keyhole.settings import ClientMode, Precision


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains in one round.

    Args:
        steps: The number of local steps, if ``epochs`` is not given.
        lr: The learning rate. Without it the client shares the gradient of one step itself.
        mode: ``train``, ``eval``, or ``frozen-norm`` (see :mod:`keyhole.models.modes`).
        epochs: The number of passes over the client's images.
        batch_size: Images per step. Without it every step takes all images, in order.
        optimiser: ``sgd``, ``adam`` or ``adamw``, with settings: ``sgd(momentum=0.9)``.
        momentum: The momentum of ``sgd`` without settings.
        clip: The largest norm of a step's gradient; longer gradients are scaled down.
        augment: Whether images are flipped and shifted at random in every step.
        precision: ``float32``, ``tf32`` or ``bf16`` (see :mod:`keyhole.federation.precision`);
            None leaves torch's own settings.
    """

    steps: int = 1
    lr: float | None = None
    mode: ClientMode = "train"
    epochs: int | None = None
    batch_size: int | None = None
    optimiser: str = "sgd"
    momentum: float = 0.0
    clip: float | None = None
    augment: bool = False
    precision: Precision | None = None

    def __post_init__(self) -> None:
        if self.steps < 1 or ((self.epochs or self.steps > 1) and self.lr is None):
            raise DoesNotFit("several local steps need a learning rate: pass --lr")
        if self.lr is not None and not 0 < self.lr < math.inf:
            raise DoesNotFit(f"the learning rate must be positive and finite, got {self.lr}")

    def batch_size_for(self, images: int) -> int:
        """Returns the size of a full batch.

        Args:
            images: The client's number of images.
        """
        return images if self.batch_size is None else min(self.batch_size, images)

    def batches_per_epoch(self, images: int) -> int:
        """Returns the number of batches per epoch.

        Args:
            images: The client's number of images.
        """
        return len(cut_batches(images, self.batch_size_for(images)))

    def count_steps(self, images: int) -> int:
        """Returns how many steps a client takes in a round.

        Args:
            images: The client's number of images.
        """
        if self.epochs is None:
            return self.steps
        return self.epochs * self.batches_per_epoch(images)

    def batches(self, images: int, draw: torch.Generator) -> Iterator[tuple[int, Tensor]]:
        """Yields the epoch and the image indices of every step.

        Args:
            images: The client's number of images.
            draw: Shuffles the images in every epoch.

        >>> training = LocalTraining(lr=0.1, epochs=2, batch_size=2)
        >>> draw = torch.Generator().manual_seed(0)
        >>> [(epoch, len(batch)) for epoch, batch in training.batches(5, draw)]
        [(0, 2), (0, 3), (1, 2), (1, 3)]
        """
        count = self.batches_per_epoch(images)
        cuts = cut_batches(images, self.batch_size_for(images))
        order = torch.arange(images)
        for step in range(self.count_steps(images)):
            epoch, number = divmod(step, count)
            if number == 0 and count > 1:
                order = torch.randperm(images, generator=draw)
            yield epoch, order[cuts[number]]

    def make_optimiser(self, weights: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns torch's optimiser.

        Args:
            weights: The parameters that it changes.
        """
        assert self.lr is not None
        return self.read_optimiser().make(weights, self.lr)

    def read_optimiser(self) -> LocalOptimiser:
        """Returns the optimiser with its settings."""
        return read_optimiser(self.optimiser, self.momentum)


def cut_batches(images: int, size: int) -> list[slice]:
    """The batches of an epoch, each a part of the images in their order.

    A last batch of a single image joins the one before it: batch statistics need two.

    Args:
        images: The client's number of images.
        size: The images of a full batch.

    >>> [(batch.start, batch.stop) for batch in cut_batches(5, 2)]
    [(0, 2), (2, 5)]
    """
    full, rest = divmod(images, size)
    count = full + (rest > 1 or (rest == 1 and full == 0))
    return [slice(size * i, size * (i + 1) if i < count - 1 else images) for i in range(count)]


def clip_gradient(gradient: list[Tensor], limit: float | None) -> list[Tensor]:
    """Scales a gradient to the norm ``limit`` if it is longer."""
    if limit is None:
        return gradient
    norm = torch.stack([g.norm() for g in gradient]).norm()
    scale = (limit / norm.clamp(min=torch.finfo(norm.dtype).tiny)).clamp(max=1)
    return [g * scale for g in gradient]
