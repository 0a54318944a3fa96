"""Regions, their variance and the blocks they are cut into."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.defenses.csvar import Csvar
from keyhole.defenses.regions import (
    Zone,
    compute_region_variances,
    find_block_side,
    find_sensitive_regions,
    region_side,
    split_into_zones,
)

SIZES = [(28, 28), (32, 32), (64, 64), (112, 92), (224, 224), (25, 33), (7, 5), (1, 1), (1, 40)]


@pytest.mark.parametrize(
    ("size", "side", "blocks"),
    [
        ((28, 28), 8, (2, 4)),
        ((32, 32), 8, (2, 4)),
        ((64, 64), 8, (2, 4)),
        ((112, 92), 16, (4, 8)),
        ((224, 224), 16, (4, 8)),
        ((600, 800), 32, (8, 16)),
    ],
)
def test_sides_are_those_of_the_paper(
    size: tuple[int, int], side: int, blocks: tuple[int, int]
) -> None:
    first = split_into_zones(*size)[0]
    assert region_side(*size) == first.tall == first.wide == side
    assert (first.fine, first.coarse) == blocks


def test_partial_regions_are_cut_by_the_greatest_power_of_two_that_fits() -> None:
    """28 pixels leave a rest of 4; 92 of 12; 25 of 1."""
    assert [z.tall for z in split_into_zones(28, 28)] == [8, 8, 4, 4]
    assert split_into_zones(28, 28)[-1] == Zone(24, 24, 1, 1, 4, 4, 2, 4)
    right = split_into_zones(112, 92)[1]
    assert (right.wide, right.fine, right.coarse) == (12, 4, 4)
    assert {z.fine for z in split_into_zones(25, 25)[1:]} == {1}
    assert find_block_side(12, 16, 8) == 4
    assert find_block_side(7, 4, 4) == 1


@pytest.mark.parametrize("size", SIZES)
def test_zones_cover_every_pixel_once(size: tuple[int, int]) -> None:
    count = torch.zeros(size)
    for zone in split_into_zones(*size):
        zone.crop(count).add_(1)
        assert zone.tall % zone.fine == zone.wide % zone.fine == zone.coarse % zone.fine == 0
    assert bool((count == 1).all())


def plain_variances(image: np.ndarray) -> np.ndarray:
    """Region by region, as the paper writes it; the reference of the fast way."""
    channels, height, width = image.shape
    side = region_side(height, width)
    rows = []
    for top in range(0, height, side):
        row = []
        for left in range(0, width, side):
            part = image[:, top : top + side, left : left + side].reshape(channels, -1)
            row.append(part.astype(np.float64).var(axis=1).mean())
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_variances_are_the_paper_s(size: tuple[int, int], channels: int) -> None:
    draw = torch.Generator().manual_seed(1)
    images = torch.randint(256, (2, channels, *size), generator=draw, dtype=torch.uint8)
    found = compute_region_variances(images)
    for image, ours in zip(images, found, strict=True):
        wanted = plain_variances(image.numpy())
        assert ours.shape == wanted.shape
        np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-12, atol=1e-9)
    assert torch.equal(compute_region_variances(images.float() / 255), found)


def test_half_of_the_regions_are_sensitive_and_ties_are_not() -> None:
    draw = torch.Generator().manual_seed(2)
    images = torch.randint(256, (3, 3, 224, 224), generator=draw, dtype=torch.uint8)
    assert find_sensitive_regions(images).flatten(1).sum(1).tolist() == [98, 98, 98]
    assert not find_sensitive_regions(torch.zeros(1, 1, 32, 32)).any()
    one = torch.zeros(1, 1, 32, 32)
    one[..., 1, 1] = 1.0
    assert find_sensitive_regions(one).sum() == 1
    spread = compute_region_variances(images)[0].flatten()
    above = spread > torch.from_numpy(np.array(np.median(spread.numpy())))
    assert torch.equal(above, find_sensitive_regions(images)[0].flatten())


def test_sixteen_bits_are_exact() -> None:
    draw = torch.Generator().manual_seed(3)
    images = torch.randint(65536, (1, 1, 64, 64), generator=draw, dtype=torch.int32)
    wanted = plain_variances(images[0].numpy())
    np.testing.assert_allclose(compute_region_variances(images)[0].numpy(), wanted, rtol=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    height=st.integers(1, 70),
    width=st.integers(1, 70),
    channels=st.integers(1, 4),
    seed=st.integers(0, 2**60),
    levels=st.sampled_from([2, 5, 256]),
)
def test_the_shuffled_image_gives_its_block_sizes_away(
    height: int, width: int, channels: int, seed: int, levels: int
) -> None:
    """Exactly, ties and all: the variance of a region does not depend on the pixels' order."""
    draw = torch.Generator().manual_seed(seed)
    image = torch.randint(levels, (1, channels, height, width), generator=draw, dtype=torch.uint8)
    for channel_rule in ("apart", "together"):
        hidden = Csvar(channels=channel_rule).shuffle(image, torch.tensor([seed]))
        assert torch.equal(compute_region_variances(hidden), compute_region_variances(image))
        assert torch.equal(find_sensitive_regions(hidden), find_sensitive_regions(image))
