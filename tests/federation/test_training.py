"""How a client draws batches, clips gradients and augments images."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.federation import LocalTraining
from keyhole.federation.augmentation import augment_images
from keyhole.federation.training import clip_gradient
from keyhole.seeds import generator

digits = load("digits")
IMAGES = digits.images(range(9))

counts = st.integers(1, 12)


def drawn(training: LocalTraining, images: int, seed: int = 0) -> list[tuple[int, list[int]]]:
    found = training.batches(images, generator(seed, "batches"))
    return [(epoch, batch.tolist()) for epoch, batch in found]


@settings(max_examples=40)
@given(images=counts, size=counts, epochs=st.integers(1, 3))
def test_every_epoch_shows_every_image_once(images: int, size: int, epochs: int) -> None:
    training = LocalTraining(lr=0.1, epochs=epochs, batch_size=size)
    steps = drawn(training, images)
    assert len(steps) == training.count_steps(images) == epochs * training.batches_per_epoch(images)
    for epoch in range(epochs):
        shown = [i for e, batch in steps if e == epoch for i in batch]
        assert sorted(shown) == list(range(images))


@settings(max_examples=40)
@given(images=counts, size=st.integers(2, 12))
def test_no_batch_is_a_single_image_unless_the_client_has_no_more(images: int, size: int) -> None:
    sizes = [
        len(batch) for _, batch in drawn(LocalTraining(lr=0.1, epochs=1, batch_size=size), images)
    ]
    assert min(sizes) > 1 or images == 1
    assert max(sizes) <= size + 1
    assert all(length == min(size, images) for length in sizes[:-1])


@pytest.mark.parametrize(
    ("images", "size", "sizes"),
    [
        (5, 2, [2, 3]),
        (6, 4, [4, 2]),
        (5, 4, [5]),
        (4, 4, [4]),
        (3, 16, [3]),
        (1, 16, [1]),
        (3, 1, [1, 1, 1]),
        (7, None, [7]),
    ],
)
def test_a_last_single_image_joins_the_batch_before(
    images: int, size: int | None, sizes: list[int]
) -> None:
    training = LocalTraining(lr=0.1, epochs=1, batch_size=size)
    assert [len(batch) for _, batch in drawn(training, images)] == sizes
    assert training.batches_per_epoch(images) == len(sizes)


def test_steps_end_in_the_middle_of_an_epoch() -> None:
    training = LocalTraining(steps=5, lr=0.1, batch_size=2)
    assert [(e, len(b)) for e, b in drawn(training, 4)] == [(0, 2), (0, 2), (1, 2), (1, 2), (2, 2)]
    assert training.count_steps(4) == training.count_steps(400) == 5


def test_epochs_win_over_steps() -> None:
    assert LocalTraining(steps=7, lr=0.1, epochs=2, batch_size=2).count_steps(6) == 6


@pytest.mark.parametrize("size", [None, 6, 60])
def test_whole_batches_come_in_the_images_own_order(size: int | None) -> None:
    steps = drawn(LocalTraining(lr=0.1, epochs=3, batch_size=size), 6)
    assert steps == [(epoch, list(range(6))) for epoch in range(3)]


def test_batches_are_shuffled_anew_in_every_epoch_and_by_the_generator_alone() -> None:
    training = LocalTraining(lr=0.1, epochs=2, batch_size=3)
    torch.manual_seed(1)
    one = drawn(training, 12)
    torch.manual_seed(2)
    assert drawn(training, 12) == one
    assert drawn(training, 12, seed=5) != one
    assert [b for e, b in one if e == 0] != [b for e, b in one if e == 1]


@pytest.mark.parametrize("values", [{"epochs": 1}, {"epochs": 2, "batch_size": 4}])
def test_epochs_need_a_learning_rate(values: dict[str, int]) -> None:
    with pytest.raises(DoesNotFit, match="--lr"):
        LocalTraining(**values)


def norm(gradient: list[Tensor]) -> float:
    return float(torch.cat([g.flatten() for g in gradient]).norm())


def test_a_long_gradient_is_scaled_to_the_limit() -> None:
    gradient = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    short = clip_gradient(gradient, 0.5)
    assert norm(short) == pytest.approx(0.5)
    assert torch.allclose(short[0] * 10, gradient[0])
    assert torch.allclose(short[1] * 10, gradient[1])


def test_a_short_gradient_stays_bit_for_bit() -> None:
    gradient = [torch.randn(3, 3), torch.randn(2)]
    for limit in (100.0, None):
        assert all(
            torch.equal(a, b) for a, b in zip(clip_gradient(gradient, limit), gradient, strict=True)
        )


def test_a_gradient_of_zeros_can_be_clipped() -> None:
    (still,) = clip_gradient([torch.zeros(4)], 1.0)
    assert torch.equal(still, torch.zeros(4))


def copies(image: Tensor) -> Iterator[Tensor]:
    """Every copy that may be shown of an image ``[C, H, W]``."""
    _, height, width = image.shape
    down, across = height // 8, width // 8
    for one in (image, image.flip(-1)):
        padded = F.pad(one[None], (across, across, down, down), mode="reflect")[0]
        for top in range(2 * down + 1):
            for left in range(2 * across + 1):
                yield padded[:, top : top + height, left : left + width]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 16, 8), (3, 8, 24), (1, 4, 4), (2, 9, 17)])
def test_augmented_images_are_mirrored_and_shifted_copies(shape: tuple[int, int, int]) -> None:
    images = torch.rand(12, *shape)
    found = augment_images(images)
    assert found.shape == images.shape
    assert found.dtype == images.dtype
    for image, shown in zip(images, found, strict=True):
        assert any(torch.equal(shown, copy) for copy in copies(image))


def test_all_copies_of_a_digit_are_shown_sooner_or_later() -> None:
    found = augment_images(IMAGES[:1].expand(600, -1, -1, -1))
    possible = list(copies(IMAGES[0]))
    assert len(possible) == 18
    shown = [sum(torch.equal(one, copy) for one in found) for copy in possible]
    assert sum(shown) == 600
    assert min(shown) > 10


def test_augmentation_is_repeated_by_the_seed_and_leaves_the_images_alone() -> None:
    before = IMAGES.clone()
    torch.manual_seed(3)
    one = augment_images(IMAGES)
    assert not torch.equal(augment_images(IMAGES), one)
    torch.manual_seed(3)
    assert torch.equal(augment_images(IMAGES), one)
    assert torch.equal(IMAGES, before)


def test_images_smaller_than_8_pixels_are_only_mirrored() -> None:
    image = torch.rand(1, 1, 4, 4)
    for _ in range(8):
        found = augment_images(image)
        assert torch.equal(found, image) or torch.equal(found, image.flip(-1))
