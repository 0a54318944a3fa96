"""Puzzles whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from keyhole.attacks.jigsaw import Placement
from keyhole.models.puzzle import cut_patches, join_patches, random_orders
from keyhole.seeds import generator


@dataclass(frozen=True)
class Riddle:
    """An image whose cell i shows the patch that belongs to ``order[i]``, and the truth."""

    image: Tensor
    shuffled: Tensor
    truth: Tensor
    order: Tensor

    @property
    def answer(self) -> Tensor:
        """What :attr:`Placement.order` should be."""
        return self.order.argsort()

    def right(self, found: Placement) -> float:
        """The share of shuffled cells that show the right patch."""
        hits = (self.order[found.order] == torch.arange(len(self.order))).view(self.shuffled.shape)
        return float(hits[self.shuffled].double().mean())


Pose = Callable[..., Riddle]


@pytest.fixture(scope="session")
def pose() -> Pose:
    """Shuffles the cells that a mask names; ``noise`` is added to the pixels."""

    def make(truth: Tensor, shuffled: Tensor, *, seed: int = 0, noise: float = 0.0) -> Riddle:
        draw = generator(seed, "riddle")
        order = random_orders(shuffled.reshape(1, -1), draw)[0]
        grid = (shuffled.shape[0], shuffled.shape[1])
        seen = truth + noise * torch.randn(truth.shape, generator=draw)
        image = join_patches(cut_patches(seen[None], grid)[:, order], truth[None].shape, grid)[0]
        return Riddle(image, shuffled, truth, order)

    return make


@pytest.fixture(scope="session")
def waves() -> Callable[..., Tensor]:
    """A smooth image ``[C, H, W]`` without two places alike: a few plane waves a channel."""

    def make(channels: int = 3, height: int = 64, width: int = 64, seed: int = 0) -> Tensor:
        draw = generator(seed, "waves")
        y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
        image = torch.zeros(channels, height, width)
        for channel in range(channels):
            for _ in range(6):
                down, across, phase = (torch.rand(3, generator=draw) - 0.5).tolist()
                image[channel] += torch.sin(0.3 * (down * y + across * x) + 2 * math.pi * phase)
        return image / 12 + 0.5

    return make


@pytest.fixture(scope="session")
def scattered() -> Callable[..., Tensor]:
    """A mask of ``count`` cells drawn from the grid."""

    def make(rows: int, columns: int, count: int, seed: int = 0) -> Tensor:
        drawn = torch.randperm(rows * columns, generator=generator(seed, "scattered"))
        return (drawn < count).view(rows, columns)

    return make
