"""Copies of a client's images for each local epoch, in an order that nobody knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.matching.parts.batches import Batch
from keyhole.attacks.matching.parts.priors import Guess, Prior
from keyhole.attacks.matching.parts.unknowns import Unknown
from keyhole.attacks.matching.problem import MatchingProblem
from keyhole.federation.training import cut_batches
from keyhole.seeds import generator as seeded

SINKHORN_TURNS = 20
"""Normalisations of rows and columns that make scores an order."""
FIRST_SPREAD = 0.1
"""The spread of the scores at the start: all orders are nearly as likely."""
FEATURES, KERNEL, POOL = 32, 5, 4
"""Random features of the prior: filters, their side, and the pixels over which they are pooled."""


@dataclass(frozen=True)
class EpochProblem(MatchingProblem):
    """A problem in which every local epoch has its own copies of the client's images.

    ``knowledge.batch_size`` counts all copies.

    Args:
        images: The client's images.
    """

    images: int = 1

    @property
    def epochs(self) -> int:
        """The epochs, the last of which may be cut short."""
        return self.knowledge.batch_size // self.images

    @cached_property
    def cuts(self) -> list[slice]:
        once = cut_batches(self.images, self.local_batch)
        starts = range(0, self.knowledge.batch_size, self.images)
        return [slice(start + cut.start, start + cut.stop) for start in starts for cut in once]


def count_epochs(images: int, batch: int, steps: int) -> int:
    """The local epochs whose batches differ; 1 where every step takes all images.

    >>> count_epochs(8, 2, 4), count_epochs(8, 2, 5), count_epochs(8, 8, 5)
    (1, 2, 1)

    Args:
        images: The client's images.
        batch: The images of a local batch.
        steps: The number of local steps.
    """
    batches = len(cut_batches(images, batch))
    return 1 if batches == 1 else -(-steps // batches)


@dataclass(frozen=True)
class Orders(Unknown):
    """Scores ``[N, epochs, B, B]`` of which label belongs to which place in an epoch."""

    name: ClassVar[str] = "orders"

    def start(self, problem: MatchingProblem, generator: torch.Generator) -> Tensor:
        assert isinstance(problem, EpochProblem)
        shape = (problem.epochs, problem.images, problem.images)
        return FIRST_SPREAD * torch.randn(shape, generator=generator)

    def render(self, value: Tensor) -> Tensor:
        """Matrices whose rows sum to 1, and whose columns nearly do: which place has which label.

        Args:
            value: The scores.
        """
        for _ in range(SINKHORN_TURNS):
            value = value - value.logsumexp(-2, keepdim=True)
            value = value - value.logsumexp(-1, keepdim=True)
        return value.exp()


@dataclass(frozen=True)
class EpochBatches(Batch):
    """The copies of all epochs as one batch; each epoch has the labels in an order of its own.

    Where the order is known, every epoch has them as given.

    Args:
        unknown: The orders, if they are sought.
    """

    unknown: Orders | None = field(default_factory=Orders)

    def form(
        self,
        images: Tensor,
        targets: Tensor,
        values: Mapping[str, Tensor],
        problem: MatchingProblem,
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(problem, EpochProblem)
        if self.unknown is None:
            return images, targets.repeat(1, problem.epochs, 1)
        orders = self.unknown.render(values[self.unknown.name])
        return images, (orders @ targets[:, None]).flatten(1, 2)

    def restore(
        self, images: Tensor, best: Mapping[str, Tensor], problem: MatchingProblem
    ) -> Tensor:
        assert isinstance(problem, EpochProblem)
        return average_epochs(images.unflatten(0, (problem.epochs, problem.images)))  # type: ignore[no-untyped-call]


def average_epochs(epochs: Tensor) -> Tensor:
    """The images ``[B, C, H, W]`` of copies ``[E, B, C, H, W]``: each is the mean of its copies.

    The copies of every epoch are matched with the first epoch's, so that the sum of squared
    distances is least.

    Args:
        epochs: The copies of each epoch, in any order.
    """
    total = epochs[0].clone()
    for copies in epochs[1:]:
        costs = torch.cdist(epochs[0].flatten(1).double(), copies.flatten(1).double()).square()
        _, chosen = linear_sum_assignment(costs.cpu().numpy())
        total += copies[torch.from_numpy(chosen).to(copies.device)]
    return total / len(epochs)


@dataclass(frozen=True)
class SameInEveryEpoch(Prior):
    """Epochs have the same images in whatever order (Dimitrov et al. 2022).

    The mean over pairs of epochs of ``|mean_i phi(x_ei) - mean_i phi(x_fi)|^2``, with random local
    features phi, which do not depend on the order, and the pixels themselves.

    Args:
        weight: Weight of the term.
        problem: The problem, which knows the number of epochs.
        filters: The random filters by device, because a CUDA graph cannot copy them.
    """

    weight: float
    problem: EpochProblem
    filters: dict[torch.device, Tensor] = field(default_factory=dict, compare=False)

    def __call__(self, guess: Guess) -> Tensor:
        epochs = self.problem.epochs
        if epochs == 1:
            return guess.images.new_zeros(len(guess.images))
        pixels = torch.unflatten(guess.images, 1, (epochs, -1)).mean(2).flatten(2)
        found = self.features(
            guess.images.flatten(0, 1)
        ).unflatten(  # type: ignore[no-untyped-call]
            0, guess.images.shape[:2]
        )
        means = torch.unflatten(found, 1, (epochs, -1)).mean(2).flatten(2)
        terms = [each.var(1).mean(1) for each in (pixels, means)]
        return self.weight * torch.stack(terms).sum(0)

    def features(self, images: Tensor) -> Tensor:
        """Random local features ``[n, FEATURES, h, w]`` of images ``[n, C, H, W]``.

        Args:
            images: Model inputs.
        """
        if images.device not in self.filters:
            channels = images.shape[1]
            shape = (FEATURES, channels, KERNEL, KERNEL)
            drawn = torch.randn(shape, generator=seeded(0, "epochs"))
            self.filters[images.device] = (drawn / (channels * KERNEL**2) ** 0.5).to(images)
        found = F.conv2d(images, self.filters[images.device].to(images), padding=KERNEL // 2).relu()
        return F.avg_pool2d(found, min(POOL, *found.shape[2:]))
