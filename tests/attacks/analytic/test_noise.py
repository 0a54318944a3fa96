from __future__ import annotations

from collections.abc import Callable
from statistics import mean
from typing import Any

import pytest
import torch

from keyhole.attacks import Attack
from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.attacks.analytic.noise import (
    apply_wiener_filter,
    find_signal_directions,
    known_white_noise,
)
from keyhole.attacks.analytic.patch_lstsq import PatchLeastSquares
from keyhole.data import load
from keyhole.defenses import Defense, Dp, DpSgd, Gaussian, Pruning
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation
from keyhole.update import Update


@pytest.mark.parametrize(
    ("defense", "expected"),
    [
        (None, 0.0),
        (Pruning(), 0.0),
        (Gaussian(sigma=0.3), 3.0),
        (Gaussian(sigma=0), 0.0),
        (Dp(sigma=0.3), 3.0),
        (DpSgd(noise=2.0, clip=0.3), 2.0 * 0.3 / (4 * 2**0.5)),
        (DpSgd(noise=0), 0.0),
    ],
    ids=str,
)
def test_noise_on_the_update_is_turned_into_noise_on_the_gradient(
    defense: Defense | None, expected: float
) -> None:
    knowledge = Knowledge(shape=(1, 2, 2), classes=2, mean=(0.5,), std=(0.25,), defense=defense)
    update = Update({"weight": torch.ones(1, 1)}, steps=2, lr=0.05, batch_size=4)
    observation = Observation(torch.nn.Linear(1, 1), update, knowledge)
    assert known_white_noise(observation, "weight").sigma == pytest.approx(expected)


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(),
        LocalTraining(lr=0.5),
        LocalTraining(lr=0.5, steps=3),
        LocalTraining(lr=0.5, epochs=2, batch_size=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("defense", [DpSgd(noise=2.0, clip=1e-3), Gaussian(sigma=0.1)], ids=str)
def test_the_noise_expected_is_the_noise_there_is(
    defense: Defense, training: LocalTraining
) -> None:
    if isinstance(defense, DpSgd):
        pytest.importorskip("opacus")
    digits = load("digits")
    model = build("mlp", classes=10, channels=1, image_size=8)
    update, _ = train_client(
        model,
        digits.images(range(4)),
        digits.labels[:4],
        data=digits,
        defense=defense,
        generator=generator(0),
        training=training,
    )
    knowledge = Knowledge((1, 8, 8), 10, digits.mean, digits.std, defense=defense)
    seen = Observation(model, update, knowledge)
    expected = {known_white_noise(seen, name).sigma for name in update.gradient()}
    values = torch.cat([g.flatten() for g in update.gradient().values()])
    assert [values.std().item()] == pytest.approx(sorted(expected), rel=0.02)


@pytest.mark.parametrize(
    ("name", "attack", "noise"),
    [("mlp", LinearLeak(), 1e-3), ("vit-small", PatchLeastSquares(), 1e-5)],
    ids=["linear", "patch-lstsq"],
)
def test_knowing_the_noise_of_dpsgd_helps(
    observe: Callable[..., Any], name: str, attack: Attack, noise: float
) -> None:
    pytest.importorskip("opacus")
    photos = load("photos", image_size=32)
    model = build(name, classes=len(photos.classes), channels=3, image_size=32)
    victims = [observe(model, photos, [i], DpSgd(noise=noise), seed=i) for i in range(4)]
    adaptive = mean(v.decibels(attack(v.observation)) for v in victims)
    assert adaptive > mean(v.decibels(attack(v.unaware)) for v in victims)


def test_directions_above_the_noise_are_found() -> None:
    draws = torch.Generator().manual_seed(0)
    left, _ = torch.linalg.qr(torch.randn(60, 3, generator=draws, dtype=torch.float64))
    right, _ = torch.linalg.qr(torch.randn(40, 3, generator=draws, dtype=torch.float64))
    sizes = torch.tensor([50.0, 40.0, 30.0], dtype=torch.float64)
    noise = 0.1 * torch.randn(60, 40, generator=draws, dtype=torch.float64)
    found = find_signal_directions((left * sizes) @ right.T + noise, 0.1)
    assert found.shape == (60, 3)
    assert (found.T @ left).svd().S.min() > 0.99


def test_pure_noise_still_leaves_one_direction() -> None:
    draws = torch.Generator().manual_seed(0)
    assert find_signal_directions(torch.randn(60, 40, generator=draws), 1.0).shape == (60, 1)


@pytest.mark.parametrize("variance", [0.01, 0.1, 1.0])
def test_smoothing_brings_a_noisy_photo_nearer(variance: float) -> None:
    photos = load("photos", image_size=32)
    image = photos.normalise(photos.images([0]))[0].double()
    draws = torch.Generator().manual_seed(0)
    noise = variance**0.5 * torch.randn(image.shape, generator=draws, dtype=torch.float64)
    before = noise.square().mean()
    after = (apply_wiener_filter(image + noise, variance) - image).square().mean()
    assert after < 0.95 * before


def test_without_noise_nothing_is_smoothed() -> None:
    image = torch.randn(3, 7, 9, dtype=torch.float64)
    assert torch.allclose(apply_wiener_filter(image, 0.0), image)


def test_an_image_that_noise_explains_is_smoothed_away() -> None:
    assert (
        apply_wiener_filter(0.1 * torch.randn(1, 16, 16, dtype=torch.float64), 100.0).abs().max()
        < 1e-9
    )
