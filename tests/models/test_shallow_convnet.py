"""The attacked network takes any size and can be asked for by name."""

from __future__ import annotations

import pytest
import torch

from keyhole.models import build

NAME = "keyhole.models.shallow_convnet:shallow_convnet"


@pytest.mark.parametrize("size", [(8, 8), (28, 28), (56, 46), (112, 92)], ids=str)
def test_it_is_built_for_any_size(size: tuple[int, int]) -> None:
    network = build(NAME, classes=41, channels=1, image_size=size)
    assert network(torch.rand(2, 1, *size)).shape == (2, 41)
    assert not [m for m in network.modules() if isinstance(m, torch.nn.BatchNorm2d)]
