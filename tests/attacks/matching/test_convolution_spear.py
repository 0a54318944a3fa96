from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import nn

from keyhole.attacks import ConvolutionSpear
from keyhole.attacks.analytic import decoding
from keyhole.attacks.analytic.convolution_features import find_convolutions, read_convolution
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining

Observe = Callable[..., Any]
STILL = LocalTraining(mode="eval")


@pytest.fixture(scope="module")
def photos() -> ImageSet:
    return load("photos", image_size=12)


@pytest.fixture(autouse=True)
def few_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SAMPLES", 1000)


def network(*, norm: bool = False, bias: bool = False, channels: int = 64) -> nn.Module:
    torch.manual_seed(0)
    norms = [nn.BatchNorm2d(channels) if norm else nn.Identity() for _ in range(2)]
    return nn.Sequential(
        nn.Conv2d(3, channels, 5, stride=3, padding=2),
        norms[0],
        nn.ReLU(),
        nn.Conv2d(channels, channels, 3, padding=1, bias=bias),
        norms[1],
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, 12),
    )


@pytest.mark.parametrize("form", ["bias", "norm"])
def test_every_images_inputs_are_read_with_their_lengths(
    observe: Observe, photos: ImageSet, form: str
) -> None:
    model = network(norm=form == "norm", bias=form == "bias").eval()
    victim = observe(model, photos, [0, 10, 20], training=STILL)
    found = read_convolution(victim.observation, model)
    assert found is not None
    assert found.layer == "3"
    assert found.scaled
    truth = model[:3](photos.normalise(victim.images)).detach().double().flatten(1)
    costs = torch.cdist(found.inputs.flatten(1), truth) / truth.norm(dim=1)
    rows, columns = linear_sum_assignment(costs.numpy())
    assert costs[rows, columns].max() < 1e-3


def test_images_are_found_with_their_labels(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(norm=True), photos, [0, 10, 20], training=STILL)
    knowledge = replace(victim.observation.knowledge, client_mode="eval")
    seen = replace(victim.observation, knowledge=knowledge)
    start = ConvolutionSpear(iterations=0)(seen)
    found = ConvolutionSpear(iterations=300)(seen)
    assert found.images is not None
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(victim.labels.tolist())
    assert min(victim.best_decibels(found)) > 20
    assert sum(victim.best_decibels(found)) > sum(victim.best_decibels(start))
    errors = (found.images[:, None] - photos.normalise(victim.images)).square().sum((2, 3, 4))
    assert found.labels.tolist() == victim.labels[errors.argmin(1)].tolist()


def test_uploaded_statistics_read_through_batch_norm_in_train_mode(
    observe: Observe, photos: ImageSet
) -> None:
    training = LocalTraining(lr=0.1, steps=1)
    victim = observe(network(norm=True).train(), photos, [0, 10, 20], training=training)
    found = ConvolutionSpear(iterations=300)(victim.observation)
    assert found.diagnostics["scaled"] == 1
    assert min(victim.best_decibels(found)) > 18


def test_without_statistics_it_says_so(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(norm=True).train(), photos, [0, 10])
    with pytest.raises(DoesNotFit, match="statistics must be uploaded"):
        ConvolutionSpear()(victim.observation)


def test_only_layers_with_enough_channels_apply(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(channels=32), photos, [0, 10, 20])
    with pytest.raises(DoesNotFit, match="as many channels"):
        ConvolutionSpear()(victim.observation)


def test_layers_are_found_with_their_norms() -> None:
    model = network(norm=True)
    (found,) = find_convolutions(model, (3, 12, 12))
    assert (found.name, found.grid, found.norm) == ("3", (4, 4), "4")
    assert model[1].num_batches_tracked == 0
