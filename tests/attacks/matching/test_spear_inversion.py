from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from keyhole.attacks import InvertingGradients, SpearInversion
from keyhole.data import load
from keyhole.federation import LocalTraining

Observe = Callable[..., Any]


def quickstart(width: int = 120) -> nn.Module:
    """The shape of Flower's quickstart network on images of 16 x 16 pixels."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    head = [nn.Flatten(), nn.Linear(216, width), nn.ReLU(), nn.Linear(width, 10)]
    return nn.Sequential(*convolutions, *head)


def test_the_features_of_each_image_are_read_in_the_order_of_the_labels(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    model = quickstart()
    victim = observe(model, photos, [0, 10, 11, 25]).telling("labels")
    extra = SpearInversion().extra_inputs(victim.observation)
    truth = model[:4](photos.normalise(victim.images)).double()
    if len(set(victim.labels.tolist())) == 4:
        assert torch.allclose(extra["inputs"], truth, atol=1e-3)
    distances = torch.cdist(extra["inputs"], truth)
    assert distances.amin(0).max() < 1e-3
    assert extra["guided"].all()


def test_features_help_ig(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    victim = observe(quickstart(), photos, [0, 10, 20, 30]).telling("labels")
    plain = InvertingGradients(iterations=150)(victim.observation)
    guided = SpearInversion(iterations=150)(victim.observation)
    means = [sum(victim.best_decibels(found)) / 4 for found in (plain, guided)]
    assert means[1] > means[0] + 1


def test_several_steps_are_refused(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    training = LocalTraining(lr=0.01, steps=2)
    victim = observe(quickstart(), photos, [0, 10], training=training).telling("labels")
    assert "clients of one local step" in SpearInversion().incompatibilities(victim.observation)[0]
