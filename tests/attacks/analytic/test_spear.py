from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from keyhole.attacks import Spear
from keyhole.attacks.analytic.disaggregation import factor
from keyhole.attacks.analytic.relu_layers import find_relu_layers, gradients_by_class
from keyhole.attacks.analytic.spear import KnownLayer
from keyhole.data import ImageSet, load
from keyhole.defenses import Dropout, Gaussian
from keyhole.federation import LocalTraining

Observe = Callable[..., Any]


def network(
    pixels: int, width: int, classes: int = 10, *, bias: bool = True, seed: int = 0
) -> nn.Module:
    torch.manual_seed(seed)
    first = [nn.Flatten(), nn.Linear(pixels, width, bias=bias), nn.ReLU()]
    return nn.Sequential(*first, nn.Linear(width, 40), nn.ReLU(), nn.Linear(40, classes))


@pytest.fixture(scope="module")
def digits() -> ImageSet:
    return load("digits")


@pytest.mark.parametrize("search", ["minimised", "sampled"])
def test_every_image_of_a_batch_comes_out_exactly(
    observe: Observe, digits: ImageSet, search: Any
) -> None:
    victim = observe(network(64, 100), digits, range(8))
    found = Spear(search=search, rounds=20)(victim.observation)
    assert found.diagnostics["rank"] == 8
    assert min(victim.best_decibels(found)) > 60
    assert (found.confidence > 0.95).all()


def test_labels_come_with_their_images(observe: Observe, digits: ImageSet) -> None:
    victim = observe(network(64, 100), digits, [0, 1, 2, 10, 11, 20])
    found = Spear()(victim.observation)
    pixels = victim.pixels(found).flatten(1)
    nearest = torch.cdist(victim.images.flatten(1).double(), pixels).argmin(1)
    assert torch.equal(found.labels[nearest], victim.labels)


def test_the_rank_tells_how_many_images_there_are(observe: Observe, digits: ImageSet) -> None:
    victim = observe(network(64, 100), digits, range(6))
    unsure = replace(victim.observation.knowledge, batch_size=32)
    found = Spear()(replace(victim.observation, knowledge=unsure))
    assert len(found.images) == 6
    assert min(victim.best_decibels(found)) > 60


@pytest.mark.parametrize(
    "training",
    [
        LocalTraining(lr=0.1, steps=3),
        LocalTraining(lr=0.05, epochs=2, batch_size=3, momentum=0.9),
    ],
    ids=["steps", "momentum"],
)
def test_local_steps_leave_the_first_layers_inputs_readable(
    observe: Observe, digits: ImageSet, training: LocalTraining
) -> None:
    victim = observe(network(64, 120), digits, range(6), training=training)
    assert min(victim.best_decibels(Spear()(victim.observation))) > 40


def test_dropout_behind_the_relu_only_adds_zeros(observe: Observe, digits: ImageSet) -> None:
    model = network(64, 160)
    model[2] = nn.Sequential(nn.ReLU(), nn.Dropout(0.0))
    victim = observe(model, digits, range(6), Dropout(p=0.3))
    assert min(victim.best_decibels(Spear()(victim.observation))) > 60


def test_without_a_bias_the_brightness_is_assumed(observe: Observe, digits: ImageSet) -> None:
    victim = observe(network(64, 100, bias=False), digits, range(4))
    found = Spear()(victim.observation)
    assert any("as bright as pixels can be" in note for note in found.notes)
    cosines = torch.cosine_similarity(
        found.images.flatten(1)[None].double(),
        digits.normalise(victim.images).flatten(1)[:, None].double(),
        dim=2,
    )
    assert (cosines.amax(1) > 0.99999).all()


def test_what_is_too_noisy_is_not_read_at_all(observe: Observe, digits: ImageSet) -> None:
    victim = observe(network(64, 100), digits, range(4), Gaussian(sigma=0.01))
    found = Spear()(victim.observation)
    assert found.images is None
    assert found.notes == ("the gradient is not precise enough to tell zeros from other entries",)


def test_a_narrow_layer_gives_all_or_nothing(observe: Observe, digits: ImageSet) -> None:
    victim = observe(network(64, 24), digits, range(20))
    found = Spear(rounds=3)(victim.observation)
    assert found.images is None
    assert "images need all of them" in found.notes[0]


@pytest.mark.parametrize(("batch", "width"), [(8, 512), (16, 512), (25, 512)])
def test_cifar_batches_of_the_published_sizes(
    observe: Observe, data_dir: Path, batch: int, width: int
) -> None:
    images = load("dia-cifar10", data_dir=str(data_dir))
    victim = observe(network(3072, width), images, range(batch))
    found = Spear()(victim.observation)
    assert len(found.images) == batch
    assert min(victim.best_decibels(found)) > 60


class Functional(nn.Module):
    """Rectifies by a function and in place, after an activation without zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(64, 30), nn.Linear(30, 20), nn.Linear(20, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.nn.functional.gelu(self.a(x.flatten(1)))
        return self.c(torch.relu_(self.b(hidden)))


def test_relus_are_found_however_they_are_written() -> None:
    model = Functional()
    assert find_relu_layers(model, (1, 8, 8)) == ("b",)
    assert not any(m._forward_hooks for m in model.modules())


def test_gradients_by_class_are_those_of_the_cross_entropy(digits: ImageSet) -> None:
    model = network(64, 100)
    inputs = digits.normalise(digits.images([4, 5])).flatten(1)
    found = gradients_by_class(model, "1", inputs, (1, 8, 8))
    labels = torch.tensor([7, 2])
    hidden = model[1](inputs).detach().requires_grad_()
    nn.functional.cross_entropy(model[2:](hidden), labels, reduction="sum").backward()
    assert torch.allclose(found[labels, [0, 1]], hidden.grad, atol=1e-6)


def test_directions_that_depend_on_each_other_end_in_no_error(
    observe: Observe, digits: ImageSet
) -> None:
    victim = observe(network(64, 100), digits, range(4))
    factors = factor(victim.observation.update, "1.weight", 4)
    assert factors is not None
    same = torch.ones(4, 4, dtype=torch.double) / 2
    known = KnownLayer.read(victim.observation, "1")
    parts = known.take_apart(same, factors)
    assert parts.inputs.isfinite().all()
    assert not (known.consistency(parts) > 0.97).all()
