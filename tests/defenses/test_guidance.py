from __future__ import annotations

import torch

from keyhole.defenses.guidance import is_gradient, pick_one_per_class
from keyhole.seeds import generator
from keyhole.update import Update


def test_one_sample_of_each_class_every_one_as_likely() -> None:
    labels = torch.tensor([5, 1, 5, 5, 9])
    draws = [pick_one_per_class(labels, generator(seed)).tolist() for seed in range(600)]
    assert {len(d) for d in draws} == {3}
    assert {d[0] for d in draws} == {1}
    assert {d[2] for d in draws} == {4}
    counts = torch.tensor([d[1] for d in draws]).bincount(minlength=5)
    assert counts.sum() == counts[[0, 2, 3]].sum()
    assert counts[[0, 2, 3]].min() > 150


def test_a_bare_gradient_is_told_by_its_recipe() -> None:
    assert is_gradient(Update.from_gradient({}, batch_size=3))
    assert not is_gradient(Update({}, lr=0.1))
    assert not is_gradient(Update({}, steps=2))
