"""One image's gradient comes out of a batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from keyhole.attacks import Fishing, InvertingGradients
from keyhole.data import ImageSet, load
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining, compute_local_update
from keyhole.models import build
from keyhole.threat import PublicKnowledge


def know(data: ImageSet, **facts: int) -> PublicKnowledge:
    public = data.normalise(data.images(range(len(data) - 100, len(data))))
    return PublicKnowledge(data.shape, len(data.classes), public, **facts)


def batch_with_one(data: ImageSet, target: int, size: int) -> list[int]:
    """Indices of a batch in which the first image alone has the target class."""
    labels = data.labels.tolist()
    others = [i for i, label in enumerate(labels) if label != target]
    return [labels.index(target), *others[: size - 1]]


def gradient(model: nn.Module, data: ImageSet, indices: list[int], mode: str = "eval"):
    training = LocalTraining(mode=mode)
    inputs = data.normalise(data.images(indices))
    update = compute_local_update(model, inputs, data.labels[indices], training=training, seed=0)
    return update.gradient()


@pytest.mark.parametrize("name", ["lenet", "mlp", "resnet18"])
def test_the_batch_s_gradient_is_that_of_the_fished_image(name):
    data = load("digits")
    model = build(name, classes=10, channels=1, image_size=8, seed=0)
    altered = Fishing(target=3).alter(model, know(data))
    indices = batch_with_one(data, 3, 16)
    whole, alone = gradient(altered, data, indices), gradient(altered, data, indices[:1])
    names = [n for n in whole if not n.startswith(("fc", "head", list(whole)[-1].split(".")[0]))]
    assert len(names) > 2 or name == "mlp"
    for each in names:
        assert torch.allclose(16 * whole[each], alone[each], rtol=1e-3, atol=1e-6), each


def test_the_image_is_seen_as_in_a_batch_of_one(observe):
    data = load("digits")
    model = build("lenet-wide", classes=10, channels=1, image_size=8, seed=0)
    indices = batch_with_one(data, 3, 16)
    attack = Fishing(target=3, iterations=150)
    fished = observe(attack.alter(model, know(data, batch_size=16)), data, indices)
    alone = observe(model, data, indices[:1]).telling("labels")
    unaided = observe(model, data, indices).telling("labels")
    plain = InvertingGradients(iterations=150)
    seen = fished.best_decibels(attack(fished.observation))[0]
    assert seen > alone.decibels(plain(alone.observation)) - 3
    assert seen > unaided.best_decibels(plain(unaided.observation))[0] + 3


def test_a_gated_unit_tells_images_of_one_class_apart():
    data = load("digits")
    layers = [nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU()]
    torch.manual_seed(0)
    model = nn.Sequential(*layers, nn.Linear(16, 10))
    same = [i for i, label in enumerate(data.labels.tolist()) if label == 3][:16]
    count = {}
    for share in (1.0, 0.1):
        altered = Fishing(target=3, share=share).alter(model, know(data))
        each = [gradient(altered, data, [i])["1.weight"].norm() for i in same]
        count[share] = sum(float(size) > 0 for size in each)
    assert count[1.0] == 16
    assert 1 <= count[0.1] <= 6


def test_refusals():
    data = load("digits")
    lenet = build("lenet", classes=10, channels=1, image_size=8, seed=0)
    with pytest.raises(DoesNotFit, match="no class 10"):
        Fishing(target=10).alter(lenet, know(data))
    with pytest.raises(DoesNotFit, match="ReLU"):
        Fishing(share=0.1).alter(lenet, know(data))
    with pytest.raises(DoesNotFit, match="shape"):
        Fishing().alter(lenet)
