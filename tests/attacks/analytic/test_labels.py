from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from keyhole.attacks import LabelInference
from keyhole.attacks.analytic.labels import allocate_labels
from keyhole.data import ImageSet, load
from keyhole.models import build
from keyhole.seeds import generator

Observe = Callable[..., Any]
attack = LabelInference()
MODELS = ["mlp", "lenet", "resnet18", "vit-small"]


@cache
def data(name: str, size: int) -> ImageSet:
    return load(name, image_size=size)


@cache
def model(name: str, images: str, size: int) -> nn.Module:
    shown = data(images, size)
    return build(name, classes=len(shown.classes), channels=shown.shape[0], image_size=size)


def right(victim: Any) -> int:
    found = attack(victim.observation).labels
    return sum((Counter(found.tolist()) & Counter(victim.labels.tolist())).values())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("images", "size"), [("digits", 28), ("photos", 32)])
def test_the_label_of_one_image_is_read(
    observe: Observe, name: str, images: str, size: int
) -> None:
    victims = [observe(model(name, images, size), data(images, size), [i]) for i in (1, 4, 8)]
    assert [int(attack(v.observation).labels) for v in victims] == [int(v.labels) for v in victims]


def batches(images: ImageSet, count: int) -> list[list[int]]:
    return [
        torch.randint(len(images), (8,), generator=generator(i, "batch")).tolist()
        for i in range(count)
    ]


@pytest.mark.parametrize("name", ["lenet", "resnet18", "vit-small"])
@pytest.mark.parametrize(("images", "size"), [("digits", 28), ("photos", 32)])
def test_the_labels_of_a_batch_are_counted(
    observe: Observe, name: str, images: str, size: int
) -> None:
    shown = data(images, size)
    for batch in batches(shown, 2):
        assert right(observe(model(name, images, size), shown, batch)) == 8


@pytest.mark.parametrize("size", [28, 32])
def test_the_labels_of_a_batch_are_counted_without_a_bias(observe: Observe, size: int) -> None:
    shown = data("digits", size)
    victims = [observe(model("mlp", "digits", size), shown, b) for b in batches(shown, 5)]
    assert sum(right(v) for v in victims) >= 0.9 * 8 * len(victims)


def test_two_classes_without_a_bias_are_told_apart(observe: Observe) -> None:
    images = load("faces")
    mlp = build("mlp", classes=2, channels=1, image_size=25)
    chosen = [0, 10, 20, 30, 40, 100, 110, 120, 130, 140]
    assert sum(right(observe(mlp, images, [i])) for i in chosen) >= 9


def test_several_images_of_one_class_are_all_counted(observe: Observe) -> None:
    images = data("digits", 28)
    same = (images.labels == 6).nonzero().flatten()[:5].tolist()
    victim = observe(model("lenet", "digits", 28), images, same)
    assert attack(victim.observation).labels.tolist() == [6] * 5


def test_labels_come_sorted(observe: Observe) -> None:
    images = data("digits", 28)
    victim = observe(model("vit-small", "digits", 28), images, [9, 5, 7, 1])
    assert attack(victim.observation).labels.tolist() == [1, 5, 7, 9]


@pytest.mark.parametrize(
    ("estimates", "labels"),
    [
        ([2.1, 0.2, 0.9], [0, 0, 2]),
        ([3.0, 0.0, 0.0], [0, 0, 0]),
        ([-0.5, 1.6, 1.4], [1, 1, 2]),
        ([0.0, 0.0, 0.0], [0, 1, 2]),
    ],
)
def test_counts_follow_the_estimates(estimates: list[float], labels: list[int]) -> None:
    assert allocate_labels(torch.tensor(estimates), 3).tolist() == labels


def test_a_head_that_is_not_registered_last_is_found(observe: Observe) -> None:
    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(20, 10)
            self.body = nn.Linear(64, 20)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.body(x.flatten(1)).relu())

    images = data("digits", 8)
    labels = [attack(observe(HeadFirst(), images, [i]).observation).labels for i in (3, 7)]
    assert [int(label) for label in labels] == [3, 7]


def test_classes_that_appear_twice_are_counted_classwise(observe: Observe) -> None:
    shown = data("digits", 28)
    twins = [int(i) for i in (shown.labels == 3).nonzero()[:3, 0]]
    twins += [int(i) for i in (shown.labels == 7).nonzero()[:2, 0]]
    victim = observe(model("lenet", "digits", 28), shown, [*twins, 0, 1, 2])
    found = LabelInference(softmax="classwise")(victim.observation).labels
    assert found.tolist() == sorted(victim.labels.tolist())
