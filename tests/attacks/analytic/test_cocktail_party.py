from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from keyhole.attacks import CocktailParty
from keyhole.attacks.analytic.cocktail_party import whiten_rows
from keyhole.data import load
from keyhole.models import build

Observe = Callable[..., Any]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_small_batches_are_nearly_unmixed_without_any_relu(observe: Observe, batch: int) -> None:
    photos = load("photos", image_size=32)
    model = build("mlp", classes=len(photos.classes), channels=3, image_size=32)
    victim = observe(model, photos, range(0, 3 * batch, 3))
    found = CocktailParty()(victim.observation)
    wanted = photos.normalise(victim.images).flatten(1).double()
    cosines = torch.cosine_similarity(found.images.flatten(1)[None], wanted[:, None], dim=2)
    assert (cosines.abs().amax(1) > 0.7).all()


def test_white_rows_have_unit_covariance() -> None:
    rows = torch.randn(3, 3, dtype=torch.double) @ torch.rand(3, 500, dtype=torch.double) + 4
    white, matrix = whiten_rows(rows)
    assert torch.allclose(white @ white.T / 500, torch.eye(3, dtype=torch.double), atol=1e-9)
    assert torch.allclose(white, matrix @ (rows - rows.mean(1, keepdim=True)))
