"""Shuffles by random numbers: uniform, repeatable, unlike each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from keyhole.defenses.regions import split_into_zones
from keyhole.defenses.shuffles import (
    count_draws,
    draw_keyed_numbers,
    draw_order,
    draw_seeded_numbers,
    draw_shuffle,
    invert_order,
    order_by_keys,
)


def reference_splitmix(seed: int, count: int) -> list[int]:
    """SplitMix64 as published, in Python's whole numbers."""
    mask = (1 << 64) - 1
    found = []
    for step in range(1, count + 1):
        z = (seed + step * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        found.append(z ^ (z >> 31))
    return found


@pytest.mark.parametrize("seed", [0, 1, 2**62 - 1, 1234567])
def test_numbers_are_splitmix64(seed: int) -> None:
    ours = draw_seeded_numbers(torch.tensor([seed]), 10)[0].numpy().view("<u4").view("<u8")
    assert ours.tolist() == reference_splitmix(seed, 5)


def test_an_odd_count_of_numbers() -> None:
    assert draw_seeded_numbers(torch.tensor([5, 6]), 7).shape == (2, 7)
    assert torch.equal(
        draw_seeded_numbers(torch.tensor([5]), 7)[0],
        draw_seeded_numbers(torch.tensor([5]), 9)[0, :7],
    )


def test_permutations_are_uniform() -> None:
    """All 24 orders of four items, each within five deviations of its share."""
    keys = draw_seeded_numbers(torch.arange(30_000), 4)
    orders = order_by_keys(keys)
    assert torch.equal(orders.sort(1).values, torch.arange(4).expand(30_000, 4).int())
    code = orders @ torch.tensor([64, 16, 4, 1], dtype=torch.int32)
    counts = torch.unique(code, return_counts=True)[1].double()
    assert len(counts) == 24
    share = 30_000 / 24
    assert float((counts - share).abs().max()) < 5 * math.sqrt(share)


def test_the_sixteen_items_of_a_region_go_everywhere() -> None:
    orders = order_by_keys(draw_seeded_numbers(torch.arange(16_000), 16))
    counts = torch.stack([(orders == item).double().mean(0) for item in range(16)])
    assert float((counts - 1 / 16).abs().max()) < 0.01


def test_coarse_blocks_stay_whole() -> None:
    """A fine order in a coarse region moves squares of two by two together."""
    zone = split_into_zones(32, 32)[0]
    keys = draw_seeded_numbers(torch.arange(3), 3 * 16 * 16).view(3, 3, 16, 16)
    coarse = draw_order(keys, torch.zeros(3, 1, 16, 1, dtype=torch.bool), zone, 1)
    grid = coarse.view(3, 3, 16, 4, 4)
    corners = grid[..., ::2, ::2]
    assert torch.equal(grid[..., ::2, 1::2], corners + 1)
    assert torch.equal(grid[..., 1::2, ::2], corners + 4)
    assert torch.equal(grid[..., 1::2, 1::2], corners + 5)
    assert set(corners.flatten().tolist()) == {0, 2, 8, 10}


def test_planes_and_images_are_shuffled_independently() -> None:
    draws = draw_seeded_numbers(torch.arange(2), count_draws(3, 32, 32, "apart"))
    fine = torch.ones(2, 4, 4, dtype=torch.bool)
    order = draw_shuffle(draws, fine, planes=3, size=(32, 32), channels="apart").orders[0]
    rows = order.flatten(0, 2)
    assert len(torch.unique(rows, dim=0)) == len(rows) == 2 * 3 * 16
    alike = draw_shuffle(
        draws[:, : count_draws(3, 32, 32, "together")],
        fine,
        planes=3,
        size=(32, 32),
        channels="together",
    )
    assert alike.orders[0].shape[1] == 1


def test_an_inverse_undoes() -> None:
    order = order_by_keys(draw_seeded_numbers(torch.arange(50), 12))
    back = invert_order(order)
    assert torch.equal(order.gather(1, back.long()), torch.arange(12).expand(50, 12).int())


def test_secret_numbers_depend_on_every_part() -> None:
    one = draw_keyed_numbers(b"k" * 32, "a.png/1", 100)
    assert torch.equal(one, draw_keyed_numbers(b"k" * 32, "a.png/1", 100))
    assert torch.equal(one[:50], draw_keyed_numbers(b"k" * 32, "a.png/1", 50))
    for key, place in ((b"l" * 32, "a.png/1"), (b"k" * 32, "a.png/2"), (b"k" * 32, "b.png/1")):
        assert not bool((draw_keyed_numbers(key, place, 100) == one).any())


def test_secret_numbers_are_spread_evenly() -> None:
    numbers = draw_keyed_numbers(b"k" * 32, "x", 40_000).numpy()
    counts = np.bincount((numbers.view(np.uint32) >> 28), minlength=16)
    assert abs(counts / 2500 - 1).max() < 0.1


def test_names_that_are_no_text_can_be_hashed() -> None:
    assert len(draw_keyed_numbers(b"k" * 32, "caf\udce9.png", 3)) == 3
