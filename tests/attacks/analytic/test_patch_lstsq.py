from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from statistics import mean
from typing import Any

import pytest
from torch import nn

from keyhole.attacks import PatchLeastSquares
from keyhole.data import ImageSet, load
from keyhole.defenses import Dropout, Gaussian, NoDefense
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.models import build

Observe = Callable[..., Any]


@cache
def data(name: str, size: int = 32) -> ImageSet:
    return load(name, image_size=size)


@cache
def vit(name: str, channels: int = 3, size: int = 32) -> nn.Module:
    return build(name, classes=10, channels=channels, image_size=size)


def small_vit(images: ImageSet) -> nn.Module:
    return vit("vit-small", images.shape[0])


@pytest.mark.parametrize("name", ["digits", "photos"])
@pytest.mark.parametrize("defense", [NoDefense(), Dropout(p=0.25), Dropout(p=0.75)], ids=str)
@pytest.mark.parametrize("index", [0, 1, 2])
def test_one_gradient_of_the_small_vit_holds_the_image(
    observe: Observe, name: str, defense: Any, index: int
) -> None:
    images = data(name)
    victim = observe(small_vit(images), images, [index], defense)
    found = PatchLeastSquares()(victim.observation)
    assert victim.decibels(found) >= 100
    assert found.confidence.item() > 0.99


def test_oblong_images_are_put_together_rightly(observe: Observe) -> None:
    images = load("photos", image_size=(16, 24))
    model = build("vit-small", classes=10, image_size=(16, 24))
    victim = observe(model, images, [0])
    assert victim.decibels(PatchLeastSquares()(victim.observation)) >= 100


@pytest.mark.parametrize("defense", [NoDefense(), Dropout(p=0.25)], ids=str)
@pytest.mark.parametrize("steps", [1, 3])
def test_several_local_steps_hold_the_image_too(observe: Observe, defense: Any, steps: int) -> None:
    images = data("photos")
    training = LocalTraining(steps=steps, lr=0.05)
    victim = observe(small_vit(images), images, [1], defense, training=training)
    assert victim.decibels(PatchLeastSquares()(victim.observation)) >= 40


def test_a_batch_of_two_is_refused_with_the_reason(observe: Observe) -> None:
    images = data("digits")
    victim = observe(small_vit(images), images, [0, 1])
    with pytest.raises(DoesNotFit, match=r"it needs one image per client.*sums over 2 images"):
        PatchLeastSquares()(victim.observation)


def test_every_reason_is_told_at_once(observe: Observe) -> None:
    images = data("digits")
    victim = observe(build("mlp", classes=10, channels=1, image_size=32), images, [0, 1])
    reasons = PatchLeastSquares().incompatibilities(victim.observation)
    assert len(reasons) == 2
    assert "position embeddings" in reasons[0]
    assert "one image per client" in reasons[1]


def under_noise(observe: Observe, model: nn.Module, images: ImageSet, sigma: float) -> list[Any]:
    return [observe(model, images, [i], Gaussian(sigma=sigma), seed=i) for i in range(4)]


@pytest.mark.parametrize("sigma", [1e-6, 1e-5, 1e-4, 1e-3])
def test_knowing_the_noise_helps_on_the_small_vit(observe: Observe, sigma: float) -> None:
    images, attack = data("photos"), PatchLeastSquares()
    victims = under_noise(observe, small_vit(images), images, sigma)
    naive = mean(v.decibels(attack(v.unaware)) for v in victims)
    adaptive = mean(v.decibels(attack(v.observation)) for v in victims)
    assert adaptive > naive - 0.5


@pytest.mark.parametrize("sigma", [1e-5, 1e-4])
def test_knowing_the_noise_helps_where_patches_are_large(observe: Observe, sigma: float) -> None:
    images, attack = data("photos", 64), PatchLeastSquares()
    victims = under_noise(observe, vit("timm:vit_tiny_patch16_224", 3, 64), images, sigma)
    naive = mean(v.decibels(attack(v.unaware)) for v in victims)
    adaptive = mean(v.decibels(attack(v.observation)) for v in victims)
    assert adaptive > naive


@pytest.mark.parametrize("aware", [True, False])
def test_more_noise_never_shows_more(observe: Observe, aware: bool) -> None:
    images, attack = data("photos"), PatchLeastSquares()
    means = []
    for sigma in (0, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2):
        victims = under_noise(observe, small_vit(images), images, sigma)
        seen = [v.observation if aware else v.unaware for v in victims]
        means.append(mean(v.decibels(attack(o)) for v, o in zip(victims, seen, strict=True)))
    assert means == sorted(means, reverse=True)
    assert means[0] > 100
    assert means[-1] < 20


@pytest.mark.parametrize(("defense", "least"), [(NoDefense(), 80), (Dropout(p=0.25), 100)], ids=str)
def test_a_photo_is_read_from_deit_small_within_seconds(
    observe: Observe, defense: Any, least: float
) -> None:
    images, attack = data("photos", 224), PatchLeastSquares()
    victim = observe(vit("timm:deit_small_patch16_224", 3, 224), images, [0], defense)
    attack(victim.observation)
    start = time.perf_counter()
    found = attack(victim.observation)
    assert time.perf_counter() - start < 2
    assert victim.decibels(found) >= least


def test_narrow_models_are_read_thanks_to_the_rank_cut(observe: Observe) -> None:
    images = data("photos", 224)
    victim = observe(vit("timm:deit_tiny_patch16_224", 3, 224), images, [0])
    found = PatchLeastSquares()(victim.observation)
    assert victim.decibels(found) >= 35
    assert found.diagnostics["rank"] < 192
    assert victim.decibels(PatchLeastSquares(rcond=0)(victim.observation)) < 25


def test_diagnostics_tell_how_well_the_system_was_posed(observe: Observe) -> None:
    images = data("photos")
    found = PatchLeastSquares()(observe(small_vit(images), images, [0]).observation)
    assert found.diagnostics["rank"] == 64
    assert 1 <= found.diagnostics["condition"] < 1e5
    assert found.diagnostics["residual"] < 1e-5
