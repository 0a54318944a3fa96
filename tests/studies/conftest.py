"""What the tests of several studies share: small sets of images in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from keyhole.data import ImageSet

MakeSet = Callable[[Tensor, Tensor], ImageSet]


@pytest.fixture
def make_set() -> MakeSet:
    """Makes a set of ten classes of images ``[n, 3, 32, 32]``, uint8, and their labels ``[n]``."""

    def make(pixels: Tensor, labels: Tensor) -> ImageSet:
        return ImageSet(
            name="made",
            pixels=lambda indices: pixels[list(indices)],
            labels=labels,
            classes=tuple("0123456789"),
            size=(32, 32),
            mean=(0.45, 0.45, 0.45),
            std=(0.3, 0.3, 0.3),
        )

    return make


@pytest.fixture
def shades(make_set: MakeSet) -> ImageSet:
    """Images whose class is their colour: ten shades of grey with a little noise."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(64) % 10
    noise = torch.randint(0, 12, (64, 3, 32, 32), generator=draw)
    return make_set((labels.view(-1, 1, 1, 1) * 24 + noise).to(torch.uint8), labels)
