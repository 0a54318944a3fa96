"""The network of Flower's quickstart."""

from __future__ import annotations

import pytest
import torch

from keyhole.errors import DoesNotFit
from keyhole.models import build


def test_on_cifar10_it_has_the_layers_of_flowers_tutorial() -> None:
    model = build("quickstart", classes=10, channels=3, image_size=32)
    shapes = [tuple(p.shape) for p in model.parameters() if p.dim() > 1]
    assert shapes == [(6, 3, 5, 5), (16, 6, 5, 5), (120, 400), (84, 120), (10, 84)]
    assert sum(p.numel() for p in model.parameters()) == 62_006
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.mark.parametrize("size", [16, 28, 33])
def test_other_sizes_fit(size: int) -> None:
    model = build("quickstart", classes=4, channels=1, image_size=size)
    assert model(torch.zeros(1, 1, size, size)).shape == (1, 4)


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(DoesNotFit, match="16 x 16"):
        build("quickstart", classes=10, channels=1, image_size=8)
