"""Images shuffled by CSVAR whose originals are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from keyhole.defenses.csvar import Csvar

Waves = Callable[..., Tensor]


@dataclass(frozen=True)
class Hidden:
    """Images and what CSVAR made of them."""

    truth: Tensor
    shuffled: Tensor

    def right(self, found: Tensor) -> float:
        """The share of pixels that are the true ones."""
        return float((found == self.truth).double().mean())


Hide = Callable[..., Hidden]


@pytest.fixture(scope="session")
def hide(waves: Waves) -> Hide:
    """Smooth images, ``count`` of ``[C, H, W]``, whose planes share most of their texture."""

    def make(
        planes: int = 3,
        height: int = 32,
        width: int = 32,
        *,
        count: int = 2,
        defense: Csvar | None = None,
    ) -> Hidden:
        grey = torch.stack([waves(1, height, width, seed=i) for i in range(count)])
        hues = torch.stack([waves(planes, height, width, seed=100 + i) for i in range(count)])
        truth = (0.95 * grey + 0.05 * hues).clamp(0, 1)
        seeds = torch.arange(count) + 11
        return Hidden(truth, (defense or Csvar()).shuffle(truth, seeds))

    return make
