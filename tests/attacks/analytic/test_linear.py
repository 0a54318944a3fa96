from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import LinearLeak
from keyhole.data import ImageSet, load
from keyhole.defenses import Dropout, Gaussian, NoDefense, Pruning
from keyhole.federation import LocalTraining
from keyhole.models import build

Observe = Callable[..., Any]
attack = LinearLeak()


@cache
def data(name: str) -> ImageSet:
    return load(name)


@cache
def mlp(name: str) -> nn.Module:
    images = data(name)
    return build(
        "mlp", classes=len(images.classes), channels=images.shape[0], image_size=images.size
    )


def own_mlp(activation: type[nn.Module], *, bias: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 100, bias=bias), activation(), nn.Linear(100, 10)
    )


@pytest.mark.parametrize("defense", [NoDefense(), Dropout(p=0.25), Dropout(p=0.75)], ids=str)
@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_a_digit_comes_out_exactly(observe: Observe, defense: Any, index: int) -> None:
    victim = observe(mlp("digits"), data("digits"), [index], defense)
    found = attack(victim.observation)
    assert victim.decibels(found) >= 120
    assert found.confidence.item() > 0.99


def test_an_mnist_digit_comes_out_exactly(observe: Observe, data_dir: Path) -> None:
    images = load("mnist", data_dir=data_dir)
    model = build("mlp", classes=10, channels=1, image_size=28)
    victim = observe(model, images, [0])
    assert victim.decibels(attack(victim.observation)) >= 120


def test_colour_images_come_out_exactly(observe: Observe) -> None:
    images = load("photos", image_size=(16, 12))
    victim = observe(build("mlp", classes=10, image_size=(16, 12)), images, [2])
    assert victim.decibels(attack(victim.observation)) >= 120


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Sigmoid, nn.Tanh])
def test_a_bias_gives_the_scale_away(observe: Observe, activation: type[nn.Module]) -> None:
    victim = observe(own_mlp(activation, bias=True), data("digits"), [5])
    assert victim.decibels(attack(victim.observation)) >= 120


@pytest.mark.parametrize("activation", [nn.Tanh, nn.SiLU, nn.Softplus])
def test_without_a_bias_the_second_layer_gives_the_scale_away(
    observe: Observe, activation: type[nn.Module]
) -> None:
    victim = observe(own_mlp(activation, bias=False), data("digits"), [5])
    assert victim.decibels(attack(victim.observation)) >= 60


def test_where_the_scale_cannot_be_told_the_image_fills_the_range(observe: Observe) -> None:
    victim = observe(own_mlp(nn.ReLU, bias=False), data("digits"), [5])
    found = attack(victim.observation)
    inputs = data("digits").normalise(victim.images).double().flatten()
    cosine = torch.cosine_similarity(found.images.flatten(), inputs, dim=0)
    assert abs(cosine.item()) == pytest.approx(1, abs=1e-6)
    pixels = found.images * data("digits").std[0] + data("digits").mean[0]
    assert -1e-6 <= pixels.min() < pixels.max() <= 1 + 1e-6
    touches = min(pixels.min().abs().item(), (1 - pixels.max()).abs().item())
    assert touches == pytest.approx(0, abs=1e-6)


def test_a_single_layer_is_read_too(observe: Observe) -> None:
    torch.manual_seed(0)
    victim = observe(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), data("digits"), [5])
    assert victim.decibels(attack(victim.observation)) >= 120


@pytest.mark.parametrize("stride", [1, 8])
def test_a_convolution_over_the_whole_image_is_read_or_refused(
    observe: Observe, stride: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 64, 8, stride=stride), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)
    )
    victim = observe(model, data("digits"), [5])
    if not attack.incompatibilities(victim.observation):
        assert victim.decibels(attack(victim.observation)) >= 120


def test_several_local_steps_hold_the_image_too(observe: Observe) -> None:
    training = LocalTraining(steps=3, lr=0.1)
    victim = observe(own_mlp(nn.ReLU, bias=True), data("digits"), [5], training=training)
    assert victim.decibels(attack(victim.observation)) >= 40


@pytest.mark.parametrize("name", ["digits", "faces"])
def test_dropout_separates_the_images_of_a_batch(observe: Observe, name: str) -> None:
    victim = observe(mlp(name), data(name), [0, 3, 5, 7], Dropout(p=0.5))
    found = attack(victim.observation)
    assert len(found.images) == 4
    assert min(victim.best_decibels(found)) >= 40


def test_without_dropout_a_batch_stays_mixed(observe: Observe) -> None:
    victim = observe(mlp("digits"), data("digits"), [0, 3, 5, 7])
    found = attack(victim.observation)
    assert found.images is None
    assert found.diagnostics == {"images": 0}


def test_units_that_are_off_separate_a_batch(observe: Observe) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 10))
    with torch.no_grad():
        model[1].bias.fill_(-1.2)
    victim = observe(model, data("digits"), [0, 1, 2])
    assert min(victim.best_decibels(attack(victim.observation))) >= 60


def test_knowing_that_values_were_pruned_helps(observe: Observe) -> None:
    victims = [observe(mlp("faces"), data("faces"), [i], Pruning(ratio=0.9)) for i in range(4)]
    adaptive = mean(v.decibels(attack(v.observation)) for v in victims)
    naive = mean(v.decibels(attack(v.unaware)) for v in victims)
    assert adaptive >= naive + 3


@pytest.mark.parametrize("index", range(5))
def test_an_update_of_which_little_is_left_is_borne(observe: Observe, index: int) -> None:
    victim = observe(mlp("digits"), data("digits"), [index], Pruning(ratio=0.999))
    found = attack(victim.observation)
    assert found.images is None or found.images.isfinite().all()


def test_knowing_the_noise_helps(observe: Observe) -> None:
    victims = [
        observe(mlp("faces"), data("faces"), [i], Gaussian(sigma=0.01), seed=i) for i in range(16)
    ]
    adaptive = mean(v.decibels(attack(v.observation)) for v in victims)
    naive = mean(v.decibels(attack(v.unaware)) for v in victims)
    assert adaptive > naive


def test_more_noise_never_shows_more(observe: Observe) -> None:
    means = []
    for sigma in (0, 1e-4, 1e-3, 1e-2, 1e-1):
        victims = [
            observe(mlp("digits"), data("digits"), [i], Gaussian(sigma=sigma), seed=i)
            for i in range(4)
        ]
        means.append(mean(v.decibels(attack(v.observation)) for v in victims))
    assert means == sorted(means, reverse=True)
    assert means[0] > 120
    assert means[-1] < 15


def test_the_scale_in_a_batch_comes_from_columns_that_hold_one_image_alone(
    observe: Observe,
) -> None:
    worst = []
    for trial in range(4):
        indices = torch.randperm(100, generator=torch.Generator().manual_seed(trial))[:4].tolist()
        victim = observe(mlp("faces"), data("faces"), indices, Dropout(p=0.5))
        worst.append(min(victim.best_decibels(attack(victim.observation))))
    assert min(worst) >= 60
