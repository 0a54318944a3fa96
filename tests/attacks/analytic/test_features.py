from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from keyhole.attacks import FeatureDecoding
from keyhole.attacks.analytic import decoding
from keyhole.attacks.analytic.decoding import (
    Decoder,
    Measurement,
    draw_fields,
    fit_decoder,
    regress,
)
from keyhole.attacks.analytic.features import read_features
from keyhole.attacks.analytic.head_inputs import read_head_inputs
from keyhole.data import ImageSet, load
from keyhole.federation import LocalTraining
from keyhole.seeds import generator

Observe = Callable[..., Any]


@pytest.fixture(scope="module")
def photos() -> ImageSet:
    return load("photos", image_size=16)


def network(*, bias: bool = True) -> nn.Module:
    torch.manual_seed(0)
    convolution = [nn.Conv2d(3, 8, 5, stride=2), nn.GELU(), nn.Flatten()]
    return nn.Sequential(*convolution, nn.Linear(288, 12, bias=bias))


def distances(found: Tensor, true: Tensor) -> Tensor:
    """Relative distances of the best assignment."""
    true = true.detach().double()
    costs = torch.cdist(found, true)
    rows, columns = linear_sum_assignment(costs.numpy())
    return costs[rows, columns] / true.norm(dim=1)[columns]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("indices", [[5], [0, 10, 20, 30, 35, 38], [0, 1, 2, 10, 20, 21]], ids=len)
def test_the_last_layers_inputs_come_apart(
    observe: Observe, photos: ImageSet, indices: list[int], bias: bool
) -> None:
    model = network(bias=bias)
    victim = observe(model, photos, indices)
    found = read_head_inputs(victim.observation, victim.labels)
    assert found is not None
    truth = model[:3](photos.normalise(victim.images))
    assert distances(found.inputs, truth).max() < 1e-4
    assert torch.allclose(found.chances.sum(1), torch.ones(len(indices)).double(), atol=1e-6)


def test_images_of_one_class_come_apart_by_their_softmax(
    observe: Observe, photos: ImageSet
) -> None:
    model = network()
    victim = observe(model, photos, [0, 1, 2])
    alike = replace(photos, labels=torch.full_like(photos.labels, 3))
    same = observe(model, alike, [0, 1, 2])
    for each in (victim, same):
        found = read_head_inputs(each.observation, each.labels)
        assert found is not None
        truth = model[:3](photos.normalise(each.images))
        assert distances(found.inputs, truth).max() < 1e-3


def test_a_head_alone_is_enough(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(), photos, [0, 10, 20])
    seen = victim.observation
    head = {n: t for n, t in seen.update.change.items() if n.startswith("3.")}
    alone = replace(seen, update=replace(seen.update, change=head))
    whole, found = FeatureDecoding(rounds=0)(seen), FeatureDecoding(rounds=0)(alone)
    assert found.images is not None
    assert whole.images is not None
    assert torch.allclose(found.images, whole.images)


def test_wrong_labels_explain_nothing(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(), photos, [0, 10, 20])
    wrong = (victim.labels + 1) % 3 + 5
    assert read_head_inputs(victim.observation, wrong) is None


def test_as_many_images_as_classes_do_not_come_apart(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(), photos, list(range(12)))
    assert read_head_inputs(victim.observation, victim.labels) is None


def test_a_batch_is_decoded_image_by_image(observe: Observe, photos: ImageSet) -> None:
    victim = observe(network(), photos, [0, 10, 20, 30])
    found, once = FeatureDecoding()(victim.observation), FeatureDecoding(rounds=0)
    assert found.images is not None
    decibels = victim.best_decibels(found)
    assert min(decibels) > 12
    assert sum(decibels) / 4 > 16
    assert sum(decibels) > sum(victim.best_decibels(once(victim.observation)))
    assert found.labels is not None
    assert sorted(found.labels.tolist()) == sorted(victim.labels.tolist())


def test_features_are_read_through_steps_in_an_unknown_order(
    observe: Observe, photos: ImageSet
) -> None:
    torch.manual_seed(0)
    head = [nn.Flatten(), nn.Linear(288, 200), nn.ReLU(), nn.Linear(200, 12)]
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=2), nn.ReLU(), *head)
    training = LocalTraining(lr=0.02, epochs=1, batch_size=2, momentum=0.9)
    victim = observe(model, photos, [0, 10, 20, 30], training=training)
    found = read_features(victim.observation, "relu", victim.labels.sort().values)
    assert found is not None
    truth = model[:3](photos.normalise(victim.images)).detach()
    assert distances(found.inputs, truth).max() < 0.1


def test_fields_are_pictures_and_do_not_repeat() -> None:
    first = draw_fields(4, (3, 12, 20), generator(0, "fields"))
    assert first.shape == (4, 3, 12, 20)
    assert ((first >= 0) & (first <= 1)).all()
    assert first.flatten(1).std(1).min() > 0.03
    neighbours = first.diff(dim=-1).abs().mean()
    shuffled = first.flatten(2)[..., torch.randperm(240)].diff(dim=-1).abs().mean()
    assert neighbours < shuffled / 2
    other = draw_fields(4, (3, 12, 20), generator(1, "fields"))
    assert not torch.allclose(first, other)


def test_a_linear_map_that_loses_nothing_is_inverted() -> None:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.rand(600, 12, generator=draw)
    inputs = pixels.double() @ torch.randn(12, 12, generator=draw).double()
    decoder = regress(inputs, pixels, (3, 2, 2))
    assert decoder.explained > 0.999
    assert torch.allclose(decoder(inputs, (2, 2)).flatten(1), pixels, atol=0.01)


def test_large_images_are_decoded_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "LARGEST", 8)
    model = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(48, 5))
    decoder = fit_decoder(Measurement(model, "2", (3, 16, 16), (0.5,) * 3, (0.5,) * 3))
    assert decoder.shape == (3, 8, 8)
    assert decoder(torch.zeros(2, 48), (16, 16)).shape == (2, 3, 16, 16)
    assert isinstance(decoder, Decoder)


def test_the_decoder_of_a_model_is_fitted_once(
    observe: Observe, photos: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = observe(network(), photos, [0, 10])
    first = FeatureDecoding()(victim.observation)
    monkeypatch.setattr("keyhole.attacks.analytic.features.fit_decoder", lambda *_: 1 / 0)
    assert torch.equal(first.images, FeatureDecoding()(victim.observation).images)
