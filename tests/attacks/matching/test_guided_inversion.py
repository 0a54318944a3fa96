from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import HeadInversion, InvertingGradients, Reconstruction, SpearInversion
from keyhole.attacks.matching.guided_inversion import GuidedInversion
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


@pytest.mark.parametrize("attack", [SpearInversion, HeadInversion], ids=lambda a: a.name)
def test_features_help_ig(observe: Observe, attack: type[GuidedInversion]) -> None:
    photos = load("photos", image_size=16)
    victim = observe(quickstart(), photos, [0, 10, 20, 30]).telling("labels")
    found = [
        InvertingGradients(iterations=100)(victim.observation),
        attack(iterations=100, start="random")(victim.observation),
        attack(iterations=1)(victim.observation),
    ]
    plain, guided, started = (sum(victim.best_decibels(each)) / 4 for each in found)
    assert guided > plain + 0.4
    assert started > plain + 2


def test_several_steps_are_refused_where_they_take_the_same_images(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    training = LocalTraining(lr=0.01, steps=2)
    victim = observe(quickstart(), photos, [0, 10], training=training).telling("labels")
    assert "use each image once" in SpearInversion().incompatibilities(victim.observation)[0]
    assert "clients of one local step" in HeadInversion().incompatibilities(victim.observation)[0]


def test_the_last_layer_tells_fewer_images_than_classes(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    victim = observe(quickstart(), photos, list(range(10))).telling("labels")
    assert HeadInversion().incompatibilities(victim.observation) == [
        "it needs fewer images than classes"
    ]


def test_uploaded_statistics_give_the_start_where_batch_norm_trains(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 5, stride=2), nn.BatchNorm2d(8), nn.GELU(), nn.Flatten()]
    model = nn.Sequential(*first, nn.Linear(288, 10))
    shared = observe(model, photos, [0, 10, 20], training=LocalTraining(lr=0.01, mode="train"))
    extra = HeadInversion().extra_inputs(shared.telling("labels").observation)
    truth = copy.deepcopy(model)[:4](photos.normalise(shared.images)).detach().double()
    assert (torch.cdist(extra["inputs"], truth).amin(0) / truth.norm(dim=1)).max() < 0.02
    assert not extra["guided"].any()
    assert sum(shared.best_decibels(Reconstruction(images=extra["start.pixels"]))) / 3 > 14
    hidden = observe(model, photos, [0, 10, 20])
    unknown = HeadInversion().extra_inputs(hidden.telling("labels").observation)
    assert sum(hidden.best_decibels(Reconstruction(images=unknown["start.pixels"]))) / 3 < 12


def test_a_client_that_cannot_be_told_apart_leaves_the_others(observe: Observe) -> None:
    photos = load("photos", image_size=16)
    seen = [observe(quickstart(), photos, [0, 10]).telling("labels") for _ in range(2)]
    still = {n: torch.zeros_like(t) for n, t in seen[1].observation.update.change.items()}
    broken = replace(seen[1].observation, update=replace(seen[1].observation.update, change=still))
    found = list(HeadInversion(iterations=1).on_many([seen[0].observation, broken]))
    assert sum(seen[0].best_decibels(found[0])) / 2 > 12
    assert found[1].images is not None
    assert HeadInversion(start="random").extra_inputs(broken)["guided"].sum() == 0
