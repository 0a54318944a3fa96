from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from keyhole.attacks.jigsaw import unshuffle
from keyhole.attacks.jigsaw.costs import ArrangementCosts, compute_arrangement_costs
from keyhole.attacks.jigsaw.placement import find_arrangement
from keyhole.attacks.jigsaw.seams import compute_seam_costs
from keyhole.data import load
from keyhole.errors import BadValue, DoesNotFit
from keyhole.models.block_masks import block_masks
from keyhole.models.puzzle import cut_patches
from keyhole.seeds import generator

Make = Callable[..., Any]


@cache
def photo(size: int) -> Tensor:
    return load("photos", image_size=size).images([2])[0]


def block_mask(grid: tuple[int, int], gamma: float) -> Tensor:
    return block_masks(1, grid, gamma, generator=generator(0, "mask"))[0]


@pytest.mark.parametrize(
    ("channels", "size", "grid", "count"),
    [
        (3, (64, 64), (8, 8), 5),
        (3, (64, 64), (8, 8), 40),
        (3, (64, 64), (8, 8), 64),
        (1, (64, 64), (8, 8), 40),
        (3, (48, 80), (6, 10), 40),
        (3, (64, 64), (4, 8), 20),
        (2, (20, 36), (4, 4), 10),
    ],
    ids=["few", "many", "all", "grey", "wide grid", "tall patches", "odd patches"],
)
def test_a_smooth_image_is_put_in_order(
    pose: Make,
    waves: Make,
    scattered: Make,
    channels: int,
    size: tuple[int, int],
    grid: tuple[int, int],
    count: int,
) -> None:
    riddle = pose(waves(channels, *size), scattered(*grid, count))
    found = unshuffle(riddle.image, riddle.shuffled)
    assert torch.equal(found.order, riddle.answer)
    assert torch.equal(found.image, riddle.truth)
    assert found.confidence > 0.9


@pytest.mark.parametrize(("size", "patch", "gamma"), [(224, 16, 0.5), (224, 16, 0.9), (32, 4, 0.5)])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_photos_under_masks_in_blocks(
    pose: Make, size: int, patch: int, gamma: float, noise: float
) -> None:
    riddle = pose(photo(size), block_mask((size // patch, size // patch), gamma), noise=noise)
    found = unshuffle(riddle.image, riddle.shuffled)
    assert torch.equal(found.order, riddle.answer)
    assert found.confidence > 0.95


def test_cifar_images_with_most_cells_shuffled(pose: Make, data_dir: Path) -> None:
    images = load("dia-cifar10", data_dir=data_dir).images(range(8))
    riddles = [pose(image, block_mask((8, 8), 0.9), seed=i) for i, image in enumerate(images)]
    right = [riddle.right(unshuffle(riddle.image, riddle.shuffled)) for riddle in riddles]
    assert sum(right) / len(right) > 0.9


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_what_was_not_shuffled_stays_and_no_patch_is_lost(pose: Make, noise: float) -> None:
    riddle = pose(photo(32), block_mask((8, 8), 0.7), noise=noise)
    found = unshuffle(riddle.image, riddle.shuffled)
    places = torch.arange(64)
    still = ~riddle.shuffled.flatten()
    assert torch.equal(found.order[still], places[still])
    assert torch.equal(found.order.sort().values, places)
    given, shown = (cut_patches(image[None], (8, 8))[0] for image in (riddle.image, found.image))
    assert torch.equal(shown, given[found.order])


@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_an_arrangement_never_costs_more_than_the_one_given(pose: Make, noise: float) -> None:
    riddle = pose(photo(32), block_mask((8, 8), 0.7), noise=noise)
    patches = cut_patches(riddle.image[None].double(), (8, 8))[0].view(64, 3, 4, 4).numpy()
    costs = compute_arrangement_costs(compute_seam_costs(patches), riddle.shuffled.numpy())
    best, least, _ = find_arrangement(costs)
    assert least == pytest.approx(costs.total(best))
    assert least < costs.total(np.arange(costs.size))
    cells = np.flatnonzero(riddle.shuffled.numpy())
    true = cells.searchsorted(riddle.answer.numpy()[cells])
    assert least < costs.total(true) + 1e-6
    settled = ArrangementCosts(costs.unary + 99 * (1 - np.eye(costs.size)), *astuple(costs)[1:])
    assert np.array_equal(find_arrangement(settled)[0], np.arange(costs.size))


def test_the_answer_does_not_depend_on_how_the_image_was_shuffled(pose: Make) -> None:
    mask = block_mask((8, 8), 0.5)
    riddles = [pose(photo(64), mask, seed=seed) for seed in range(3)]
    found = [unshuffle(riddle.image, mask) for riddle in riddles]
    assert not torch.equal(riddles[0].image, riddles[1].image)
    for other in found[1:]:
        assert torch.equal(other.image, found[0].image)
        assert other.cost == pytest.approx(found[0].cost)
        assert other.confidence == pytest.approx(found[0].confidence, abs=1e-6)


def test_the_answer_is_the_same_each_time_and_draws_nothing(
    pose: Make, same_rng: Callable[[], bool]
) -> None:
    riddle = pose(photo(32), block_mask((8, 8), 0.9), noise=0.05)
    first, second = (unshuffle(riddle.image, riddle.shuffled) for _ in range(2))
    for one, other in zip(astuple(first), astuple(second), strict=True):
        assert torch.equal(torch.as_tensor(one), torch.as_tensor(other))
    assert same_rng()


def test_pixels_may_be_on_any_scale(pose: Make) -> None:
    riddle = pose(photo(32), block_mask((8, 8), 0.5))
    plain = unshuffle(riddle.image, riddle.shuffled)
    scaled = unshuffle(255 * riddle.image.double() - 100, riddle.shuffled)
    assert torch.equal(plain.order, scaled.order)
    assert scaled.cost == pytest.approx(plain.cost, rel=1e-3)


def test_the_image_keeps_its_type_and_needs_no_gradient(pose: Make, waves: Make) -> None:
    riddle = pose(waves().half(), block_mask((8, 8), 0.3))
    found = unshuffle(riddle.image.half().requires_grad_(), riddle.shuffled)
    assert found.image.dtype == torch.half
    assert torch.equal(found.order, riddle.answer)


def test_where_nothing_was_shuffled_nothing_is_in_doubt(waves: Make) -> None:
    found = unshuffle(waves(), torch.zeros(8, 8, dtype=torch.bool))
    assert torch.equal(found.image, waves())
    assert (found.cost, found.confidence) == (0.0, 1.0)


def test_a_single_cell_can_only_stay(waves: Make, scattered: Make) -> None:
    found = unshuffle(waves(), scattered(8, 8, 1))
    assert torch.equal(found.image, waves())
    assert found.confidence == pytest.approx(1.0)


def test_a_grid_of_one_cell(waves: Make) -> None:
    found = unshuffle(waves(), torch.ones(1, 1, dtype=torch.bool))
    assert torch.equal(found.image, waves())


def test_a_single_row_of_two_pixel_patches(pose: Make, waves: Make) -> None:
    riddle = pose(waves(3, 2, 24), torch.tensor([[0, 1, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0]]).bool())
    assert unshuffle(riddle.image, riddle.shuffled).image.shape == riddle.image.shape


def test_a_flat_image_is_left_alone_and_nothing_is_claimed() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool)
    found = unshuffle(torch.full((3, 32, 32), 0.5), mask)
    assert torch.equal(found.order, torch.arange(16))
    assert found.confidence == pytest.approx(1 / 16, rel=0.1)


def test_patches_that_are_all_alike_do_no_harm(waves: Make) -> None:
    tiled = waves(3, 8, 8).repeat(1, 4, 4)
    found = unshuffle(tiled, torch.ones(4, 4, dtype=torch.bool))
    assert torch.equal(found.image, tiled)
    assert found.confidence < 0.2


def test_confidence_falls_as_noise_rises(pose: Make) -> None:
    mask = block_mask((8, 8), 0.7)
    riddles = [pose(photo(32), mask, noise=noise) for noise in (0.0, 0.03, 0.3)]
    found = [unshuffle(riddle.image, mask) for riddle in riddles]
    confident = [placement.confidence for placement in found]
    assert confident == sorted(confident, reverse=True)
    assert confident[0] > 0.9
    assert confident[-1] < 0.3


def test_certainty_is_one_where_nothing_moved_and_a_probability_elsewhere(pose: Make) -> None:
    riddle = pose(photo(32), block_mask((8, 8), 0.5), noise=0.05)
    found = unshuffle(riddle.image, riddle.shuffled)
    assert bool((found.certainty[~riddle.shuffled] == 1).all())
    assert bool(((found.certainty >= 0) & (found.certainty <= 1)).all())
    assert found.confidence == pytest.approx(float(found.certainty[riddle.shuffled].mean()))


@pytest.mark.parametrize(
    ("image", "mask", "complaint"),
    [
        (torch.zeros(1, 3, 8, 8), torch.ones(2, 2, dtype=torch.bool), "an image"),
        (torch.zeros(3, 8, 8), torch.ones(2, 2), "a boolean mask"),
        (torch.zeros(3, 8, 8), torch.ones(3, 2, dtype=torch.bool), "3x2 cells does not cut"),
        (torch.zeros(3, 8, 8), torch.ones(8, 2, dtype=torch.bool), "at least 2 px"),
        (torch.zeros(3, 8, 8), torch.ones(0, 2, dtype=torch.bool), "0x2 cells"),
    ],
)
def test_what_does_not_fit_is_said(image: Tensor, mask: Tensor, complaint: str) -> None:
    with pytest.raises(DoesNotFit, match=complaint):
        unshuffle(image, mask)


def test_pixels_must_be_finite() -> None:
    with pytest.raises(BadValue, match="finite"):
        unshuffle(torch.full((1, 8, 8), torch.nan), torch.ones(2, 2, dtype=torch.bool))
