from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole.data import SOURCES, ImageSet, denormalise, load, parse_size
from keyhole.data.image_set import array_reader, resize
from keyhole.errors import BadValue, DataMissing, UnknownName

digits = load("digits")
photos = load("photos", image_size=16)


@pytest.mark.parametrize("data", [digits, photos], ids=lambda d: d.name)
@given(numbers=st.lists(st.floats(0, 1, width=32), min_size=12, max_size=12))
def test_normalising_can_be_undone(data: Any, numbers: list[float]) -> None:
    channels = data.shape[0]
    images = torch.tensor(numbers, dtype=torch.float64).view(-1, channels, 2, 2)
    back = denormalise(data.normalise(images), data.mean, data.std)
    assert (back - images).abs().max() < 1e-12


def test_each_channel_is_normalised_by_its_own_mean_and_std() -> None:
    grey = photos.normalise(torch.full((1, 3, 1, 1), 0.5)).flatten()
    for channel in range(3):
        expected = (0.5 - photos.mean[channel]) / photos.std[channel]
        assert grey[channel].item() == pytest.approx(expected, rel=1e-5)


def test_a_set_can_be_given_another_normalisation() -> None:
    assert photos.with_normalisation(0.5, (0.1, 0.2, 0.3)).std == (0.1, 0.2, 0.3)
    assert photos.with_normalisation([0.5], 0.25).mean == (0.5, 0.5, 0.5)
    assert torch.equal(
        load("digits", mean=0, std=1).normalise(digits.images([3])), digits.images([3])
    )


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.5, 0.5), 0.5, "mean: 2 numbers for images of 3 channel"),
        (0.5, (1, 1, 1, 1), "std: 4 numbers for images of 3 channel"),
        (0.5, 0.0, "std above 0"),
        (0.5, float("nan"), "std above 0"),
        (float("inf"), 1, "must be finite"),
    ],
)
def test_a_normalisation_that_does_not_fit_is_refused(mean: Any, std: Any, words: str) -> None:
    with pytest.raises(BadValue, match=words):
        photos.with_normalisation(mean, std)


@pytest.mark.parametrize("data", [digits, photos, load("faces")], ids=lambda d: d.name)
def test_no_indices_give_no_images(data: ImageSet) -> None:
    assert data.images([]).shape == (0, *data.shape)
    assert (data.pixels(()).shape, data.pixels(()).dtype) == ((0, *data.shape), torch.uint8)
    assert len(data.labels[[]]) == 0


def test_a_reader_of_ones_own_need_not_know_what_no_images_are() -> None:
    own = replace(
        photos, pixels=lambda indices: torch.stack([torch.zeros(3, 16, 16)] * len(indices))
    )
    assert own.pixels(()).shape == (0, 3, 16, 16)
    assert own.pixels([4]).shape == (1, 3, 16, 16)


@pytest.mark.parametrize(
    ("text", "size"),
    [(None, None), (224, (224, 224)), ("32", (32, 32)), ("112x92", (112, 92)), ((5, 7), (5, 7))],
)
def test_sizes_are_read(text: Any, size: tuple[int, int] | None) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "big",
        "0",
        "-4",
        "3x",
        "1x2x3",
        "4.5",
        (1, 2, 3),
        0,
        "9" * 5000,
        10**9,
        "1x70000",
        [1.5, None],
    ],
)
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(BadValue, match="cannot read image size"):
        parse_size(text)


def test_resizing_keeps_the_middle() -> None:
    wide = torch.zeros(1, 1, 10, 30, dtype=torch.uint8)
    wide[..., 10:20] = 200
    assert (resize(wide, (10, 10)) == 200).all()


def test_a_picture_of_the_right_size_is_left_alone() -> None:
    image = torch.randint(0, 256, (1, 3, 9, 7), dtype=torch.uint8)
    assert resize(image, (9, 7)) is image


@pytest.mark.parametrize("channels", [(), (3,)])
def test_arrays_are_read_by_index(channels: tuple[int, ...]) -> None:
    array = np.random.default_rng(0).integers(0, 256, (4, 5, 6, *channels), dtype=np.uint8)
    read = array_reader(array, None)([3, 1])
    expected = array[[3, 1]] if channels else array[[3, 1], ..., None]
    assert np.array_equal(read.permute(0, 2, 3, 1).numpy(), expected)


def test_an_unknown_set_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match=r"unknown data set 'digit': did you mean digits"):
        load("digit")


@pytest.mark.parametrize("name", [n for n, source in SOURCES.items() if source.where])
@pytest.mark.usefixtures("no_data_dir")
def test_a_missing_set_says_what_to_put_where(name: str, tmp_path: Any) -> None:
    where = SOURCES[name].where
    with pytest.raises(DataMissing, match="--data-dir or KEYHOLE_DATA") as raised:
        load(name)
    assert where in str(raised.value)
    with pytest.raises(DataMissing, match="is not in") as raised:
        load(name, data_dir=tmp_path)
    assert where in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def test_a_data_folder_that_does_not_exist_is_told(tmp_path: Any) -> None:
    with pytest.raises(DataMissing, match=r"nowhere does not exist"):
        load("mnist", data_dir=tmp_path / "nowhere")


def test_the_data_folder_is_found_through_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("KEYHOLE_DATA", str(tmp_path))
    with pytest.raises(DataMissing, match=f"'mnist' is not in {tmp_path}"):
        load("mnist")


def test_a_part_that_a_set_lacks_is_told() -> None:
    with pytest.raises(BadValue, match=r"'digits' has no 'test' part, only train"):
        load("digits", split="test")
