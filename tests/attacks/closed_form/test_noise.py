from __future__ import annotations

import pytest
import torch

from keyhole.attacks.closed_form.noise import known_noise, signal_directions, wiener
from keyhole.data import load
from keyhole.defenses import Defense, Gaussian, Pruning
from keyhole.threat import Knowledge, Observation
from keyhole.update import Update


@pytest.mark.parametrize(
    ("defense", "expected"),
    [(None, 0.0), (Pruning(), 0.0), (Gaussian(sigma=0.3), 3.0), (Gaussian(sigma=0), 0.0)],
    ids=str,
)
def test_noise_on_the_update_is_turned_into_noise_on_the_gradient(
    defense: Defense | None, expected: float
) -> None:
    spec = None if defense is None else defense.spec
    knowledge = Knowledge(shape=(1, 2, 2), classes=2, mean=(0.5,), std=(0.25,), defense=spec)
    update = Update({"w": torch.ones(1)}, steps=2, lr=0.05)
    observation = Observation(torch.nn.Linear(1, 1), update, knowledge)
    assert known_noise(observation) == pytest.approx(expected)


def test_directions_above_the_noise_are_found() -> None:
    draws = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(60, 3, generator=draws, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(40, 3, generator=draws, dtype=torch.float64))
    sizes = torch.tensor([50.0, 40.0, 30.0], dtype=torch.float64)
    noise = 0.1 * torch.randn(60, 40, generator=draws, dtype=torch.float64)
    found = signal_directions((left * sizes) @ right.T + noise, 0.1)
    assert found.shape == (60, 3)
    assert (found.T @ left).svd().S.min() > 0.99


def test_pure_noise_still_leaves_one_direction() -> None:
    draws = torch.Generator().manual_seed(0)
    assert signal_directions(torch.randn(60, 40, generator=draws), 1.0).shape == (60, 1)


@pytest.mark.parametrize("variance", [0.01, 0.1, 1.0])
def test_smoothing_brings_a_noisy_photo_nearer(variance: float) -> None:
    photos = load("photos", image_size=32)
    image = photos.normalise(photos.images([0]))[0].double()
    draws = torch.Generator().manual_seed(0)
    noise = variance**0.5 * torch.randn(image.shape, generator=draws, dtype=torch.float64)
    before = noise.square().mean()
    after = (wiener(image + noise, variance) - image).square().mean()
    assert after < 0.95 * before


def test_without_noise_nothing_is_smoothed() -> None:
    image = torch.randn(3, 7, 9, dtype=torch.float64)
    assert torch.allclose(wiener(image, 0.0), image)


def test_an_image_that_noise_explains_is_smoothed_away() -> None:
    assert wiener(0.1 * torch.randn(1, 16, 16, dtype=torch.float64), 100.0).abs().max() < 1e-9
