from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from skimage.data import astronaut
from sklearn.datasets import load_sample_image

from keyhole.data import SOURCES, ImageSet, builtin, load

BUILT_IN = [name for name, source in SOURCES.items() if not source.where]


@cache
def photos(size: int) -> ImageSet:
    return load("photos", image_size=size)


@pytest.mark.parametrize(
    ("name", "count", "shape", "classes"),
    [
        ("digits", 1797, (1, 8, 8), 10),
        ("faces", 200, (1, 25, 25), 2),
        ("photos", 50, (3, 224, 224), 10),
    ],
)
def test_a_built_in_set_has_its_shape_and_classes(
    name: str, count: int, shape: tuple[int, int, int], classes: int
) -> None:
    data = load(name)
    assert (data.name, len(data), data.shape, len(data.classes)) == (name, count, shape, classes)
    assert set(data.labels.tolist()) == set(range(classes))
    images = data.images([0, count - 1])
    assert images.shape == (2, *shape)
    assert images.dtype == torch.float32


def test_all_built_in_sets_are_tested_here() -> None:
    assert set(BUILT_IN) == {"digits", "faces", "photos"}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("size", [16, (12, 20)])
def test_pixels_stay_in_range_at_any_size(name: str, size: int | tuple[int, int]) -> None:
    data = load(name, image_size=size)
    images = data.images(range(0, len(data), 9))
    expected = (size, size) if isinstance(size, int) else size
    assert data.size == images.shape[-2:] == expected
    assert 0 <= images.min() < 0.1
    assert 0.8 < images.max() <= 1


@pytest.mark.parametrize("name", ["digits", "faces"])
def test_mean_and_std_are_those_of_the_pixels(name: str) -> None:
    data = load(name)
    inputs = data.normalise(data.images(range(len(data))))
    assert inputs.mean().item() == pytest.approx(0, abs=1e-3)
    assert inputs.std().item() == pytest.approx(1, abs=1e-3)


def test_digits_have_the_labels_they_show() -> None:
    data = load("digits")
    assert data.labels[:10].tolist() == list(range(10))
    zero, one = data.images([0, 1])
    assert zero[0, 3:5, 3:5].sum() < one[0, 3:5, 3:5].sum()


def test_faces_come_before_what_is_none() -> None:
    data = load("faces")
    assert data.curated
    assert data.labels.tolist() == [0] * 100 + [1] * 100
    assert data.classes == ("face", "no face")


@pytest.mark.parametrize("size", [64, 224])
def test_every_photo_can_be_shown_at_any_size(size: int) -> None:
    data = photos(size)
    images = data.images(range(10 if size == 224 else len(data)))
    assert images.shape[1:] == (3, size, size)
    assert (images.flatten(1).std(1) > 0.02).all()


def test_no_two_views_of_the_photos_are_the_same() -> None:
    images = photos(64).images(range(50)).flatten(1)
    distances = torch.cdist(images, images) + torch.eye(50) * 100
    assert distances.min() > 1


def test_a_photo_and_its_quarters_form_a_group() -> None:
    data = photos(64)
    assert data.groups is not None
    assert data.groups.tolist() == list(range(10)) * 5
    assert torch.equal(data.groups, data.labels)


def test_a_photo_is_shown_whole_and_in_its_four_quarters() -> None:
    original = torch.from_numpy(astronaut()).permute(2, 0, 1)
    assert torch.equal(photos(512).pixels([0])[0], original)
    quarters = photos(256).pixels([10, 20, 30, 40])
    expected = [original[:, r : r + 256, c : c + 256] for r in (0, 256) for c in (0, 256)]
    assert all(torch.equal(q, e) for q, e in zip(quarters, expected, strict=True))


def test_photos_of_scikit_learn_are_read_without_it() -> None:
    assert np.array_equal(builtin.read_sample("china.jpg"), load_sample_image("china.jpg"))
