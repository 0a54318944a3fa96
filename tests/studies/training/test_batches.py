"""Batches of a training: which images, how they are augmented and mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from keyhole.data import ImageSet
from keyhole_studies.training import BatchMaker, TrainingSettings, draw_batches
from keyhole_studies.training.batches import make_eraser, make_mixer
from keyhole_studies.training.loop import seeded_everywhere

CPU = torch.device("cpu")


def test_batches_are_full_and_cover_the_images() -> None:
    indices = list(range(100, 110))
    settings = TrainingSettings(epochs=2, batch_size=4)
    found = list(draw_batches(indices, settings, torch.Generator().manual_seed(0)))
    assert [len(batch) for batch in found] == [4, 4, 4, 4]
    assert len(set(torch.cat(found[:2]).tolist())) == 8
    assert set(torch.cat(found).tolist()) <= set(indices)
    few = draw_batches(indices[:3], settings, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in few] == [3, 3]


def test_mixed_images_and_targets_mix_alike() -> None:
    mixer = make_mixer(TrainingSettings(epochs=1, mixed=1.0), classes=2)
    assert mixer is not None
    shares = []
    for seed in range(12):
        x = torch.zeros(2, 3, 32, 32)
        x[1] = 1.0
        with seeded_everywhere(seed):
            found, soft = mixer(x, torch.tensor([0, 1]))
        assert soft.sum(1) == pytest.approx([1.0, 1.0])
        assert float(found[0].mean()) == pytest.approx(float(soft[0, 1]), abs=1e-5)
        shares.append(float(soft[0, 1]))
    assert np.ptp(shares) > 0.3


def test_nothing_is_mixed_or_erased_unless_it_is_asked_for() -> None:
    settings = TrainingSettings(epochs=1)
    assert make_mixer(settings, classes=10) is None
    assert make_eraser(settings, CPU) is None


def test_erasing_touches_only_some_images_and_at_most_a_quarter_of_each() -> None:
    x = torch.zeros(400, 3, 32, 32)
    eraser = make_eraser(TrainingSettings(epochs=1, erasing=0.25), CPU)
    assert eraser is not None
    with seeded_everywhere(0):
        changed = eraser(x.clone()).ne(0).any(1).flatten(1).float().mean(1)
    assert 0.15 < float((changed > 0).float().mean()) < 0.3
    assert float(changed.max()) <= 17 * 17 / 32**2


def test_mixed_targets_are_smooth(shades: ImageSet) -> None:
    settings = TrainingSettings(epochs=1, smoothing=0.1, mixed=1e-9)
    with seeded_everywhere(0):
        _, found = BatchMaker(shades, settings, torch.zeros(()), seed=0).make(torch.tensor([3, 4]))
    assert float(found[0, 3]) == pytest.approx(0.91)
    assert float(found[0].sum()) == pytest.approx(1.0)


def test_inputs_are_normalised_and_augmented_anew_every_time(shades: ImageSet) -> None:
    maker = BatchMaker(shades, TrainingSettings(epochs=1), torch.zeros(()), seed=0)
    batch = torch.tensor([9, 1])
    (first, labels), (second, _) = maker.make(batch), maker.make(batch)
    assert labels.tolist() == [9, 1]
    assert not torch.equal(first, second)
    plain = shades.normalise(shades.images([9, 1]))
    assert torch.allclose(first.mean((1, 2, 3)), plain.mean((1, 2, 3)), atol=0.02)


def test_rand_augment_changes_images_and_keeps_their_shape(shades: ImageSet) -> None:
    settings = TrainingSettings(epochs=1, rand_augment="rand-m9-n2")
    with seeded_everywhere(0):
        images = BatchMaker(shades, settings, torch.zeros(()), seed=0).read([5, 6, 7, 8])
    assert images.shape == (4, 3, 32, 32)
    assert float(images.min()) >= 0
    assert float(images.max()) <= 1
    assert not torch.equal(images, shades.images([5, 6, 7, 8]))
