"""Imprints that only weights show: the network's own layers carry and sort the images."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from keyhole.attacks import ImprintWeights
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.threat import PublicKnowledge


def know(data: ImageSet, batch: int = 8) -> PublicKnowledge:
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    return PublicKnowledge(data.shape, len(data.classes), public, batch_size=batch)


def head(features: int, width: int = 512) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, width), nn.ReLU(), nn.Linear(width, 20), nn.ReLU()]


NETWORKS = {
    "fully connected": lambda: nn.Sequential(*head(64), nn.Linear(20, 10)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 8, 3, padding=1), nn.ReLU(),
        *head(8 * 64), nn.Linear(20, 10),
    ),
    "strided": lambda: nn.Sequential(
        nn.Conv2d(1, 5, 3, stride=2, padding=1), nn.ReLU(), *head(5 * 16), nn.Linear(20, 10)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
def test_the_images_of_a_batch_are_read_and_no_layer_is_new(observe, name):
    data, attack = load("digits"), ImprintWeights()
    torch.manual_seed(0)
    model = NETWORKS[name]()
    altered = attack.alter(model, know(data))
    assert [p.shape for p in altered.parameters()] == [p.shape for p in model.parameters()]
    victim = observe(altered, data, range(8))
    found = victim.best_decibels(attack(victim.observation))
    assert sum(decibels > 40 for decibels in found) >= 7


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([nn.Conv2d(1, 3, 3, stride=2, padding=1), nn.ReLU(), *head(48)], "would need 4"),
        ([nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), *head(64)], "lose pixels"),
        ([nn.BatchNorm2d(1), *head(64)], "'0' stands before"),
        ([nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 20)], "no ReLU"),
        ([nn.Flatten(), nn.Linear(64, 32, bias=False), nn.ReLU(), nn.Linear(32, 20)], "no bias"),
        ([nn.Conv2d(1, 4, 3, padding=1, bias=False), *head(256)], "no bias to keep"),
    ],
)
def test_networks_that_cannot_carry_an_image_are_refused(layers, why):
    data = load("digits")
    with pytest.raises(DoesNotFit, match=why):
        ImprintWeights().alter(nn.Sequential(*layers, nn.Linear(20, 10)), know(data))


def test_a_network_that_was_not_changed_is_not_read(observe):
    data = load("digits")
    victim = observe(NETWORKS["fully connected"](), data, [0])
    with pytest.raises(DoesNotFit, match="threshold rows"):
        ImprintWeights()(victim.observation)
