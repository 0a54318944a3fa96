from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keyhole.attacks.jigsaw.regions.blocks import (
    find_best_assignment,
    find_sources,
    group_regions,
    identity_sources,
    match_blocks,
    take_pixels,
)
from keyhole.defenses.csvar import Csvar
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 40), st.integers(5, 40), st.sampled_from([1, 3]))
def test_blocks_laid_like_the_true_image_are_it(height: int, width: int, planes: int) -> None:
    image = torch.rand(2, planes, height, width, generator=generator(height, "image", width))
    shuffled = Csvar().shuffle(image, torch.tensor([3, 4]))
    sources = find_sources(
        shuffled, image, group_regions(shuffled, find_sensitive_regions(shuffled))
    )
    assert torch.equal(take_pixels(shuffled, sources), image)


@settings(max_examples=15, deadline=None)
@given(st.integers(5, 40), st.integers(5, 40))
def test_all_groups_together_are_the_image_once(height: int, width: int) -> None:
    image = torch.rand(2, 3, height, width, generator=generator(height, "image", width))
    count, pasted = 0, torch.zeros_like(image)
    for group in group_regions(image, find_sensitive_regions(image)):
        blocks = group.cut(image)
        count += blocks.numel()
        group.paste(pasted, blocks)
    assert count == image.numel()
    assert torch.equal(pasted, image)


def test_the_best_assignment_is_the_best_of_all_assignments() -> None:
    costs = torch.rand(5, 4, 4, generator=generator(0, "costs"))
    found = costs.gather(-1, find_best_assignment(costs)[..., None]).sum((1, 2))
    every = [costs[:, range(4), order].sum(1) for order in itertools.permutations(range(4))]
    assert torch.allclose(found, torch.stack(every).min(0).values)


def test_single_pixels_are_ranked_to_the_least_distance() -> None:
    wanted, blocks = torch.rand(2, 6, 9, 1, generator=generator(0, "pixels"))
    ranked = match_blocks(wanted, blocks)
    costs = torch.cdist(wanted, blocks).square()
    best, found = (
        costs.gather(-1, order[..., None]).sum() for order in (find_best_assignment(costs), ranked)
    )
    assert float(found) == pytest.approx(float(best), rel=1e-5)


def test_one_block_size_everywhere() -> None:
    image = torch.rand(1, 3, 32, 32, generator=generator(0, "image"))
    shuffled = Csvar(block=8).shuffle(image, torch.tensor([1]))
    sources = find_sources(
        shuffled, image, group_regions(shuffled, find_sensitive_regions(shuffled), 8)
    )
    assert torch.equal(take_pixels(shuffled, sources), image)


def test_pixels_in_place_stay() -> None:
    image = torch.rand(2, 3, 8, 8)
    assert torch.equal(take_pixels(image, identity_sources(image)), image)
