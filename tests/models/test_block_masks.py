from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from keyhole.models.block_masks import Grid, block_masks, target_cells
from keyhole.seeds import generator

PAPERS: Grid = (14, 14)
ACHIEVED = {0.1: 18.6, 0.3: 57.8, 0.5: 97.8, 0.7: 136.7, 0.9: 172.8}
"""Mean cells over 4,000 draws, of a simulation of the authors' rules."""
GRIDS: list[Grid] = [(14, 14), (7, 7), (4, 4), (3, 9), (9, 3), (1, 12), (196, 1), (2, 2), (1, 1)]
EVERY_GRID = pytest.mark.parametrize("grid", GRIDS, ids=str)


def drawn(count: int, grid: Grid, gamma: float, seed: int = 0) -> Tensor:
    return block_masks(count, grid, gamma, generator=generator(seed, "masks"))


def cells(masks: Tensor) -> Tensor:
    return masks.flatten(1).sum(1).double()


@pytest.mark.parametrize(("gamma", "mean"), ACHIEVED.items())
def test_as_many_cells_are_covered_as_by_the_authors_rules(gamma: float, mean: float) -> None:
    found = cells(drawn(8000, PAPERS, gamma))
    error = float(found.std()) * math.sqrt(1 / 8000 + 1 / 4000)
    assert float(found.mean()) == pytest.approx(mean, abs=4 * error + 0.05)


def reference(gamma: float, draw: random.Random) -> Tensor:
    """The authors' rules word for word, one mask and one rectangle at a time."""
    side, mask = 14, torch.zeros(14, 14, dtype=torch.bool)
    target = math.floor(side * side * gamma)
    while int(mask.sum()) < target:
        cap = min(target - int(mask.sum()), 75)
        for _ in range(10):
            area = draw.uniform(8, cap)
            ratio = math.exp(draw.uniform(math.log(0.3), math.log(1 / 0.3)))
            height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if height >= side or width >= side:
                continue
            top, left = draw.randint(0, side - height), draw.randint(0, side - width)
            block = (slice(top, top + height), slice(left, left + width))
            if 0 < int((~mask[block]).sum()) <= cap:
                mask[block] = True
                break
        else:
            break
    return mask


def borders(masks: Tensor) -> Tensor:
    """Sides between a covered and an open cell, which tell blocks from scattered cells."""
    down, across = masks[:, 1:] != masks[:, :-1], masks[..., 1:] != masks[..., :-1]
    return (down.flatten(1).sum(1) + across.flatten(1).sum(1)).double()


def standard_error(*samples: Tensor) -> float:
    return math.sqrt(sum(float(s.var()) / len(s) for s in samples))


@pytest.mark.parametrize("gamma", [0.1, 0.5])
def test_blocks_lie_as_those_that_are_laid_one_by_one(gamma: float) -> None:
    draw = random.Random(0)
    expected = torch.stack([reference(gamma, draw) for _ in range(500)])
    found = drawn(4000, PAPERS, gamma)
    for measure in (cells, borders):
        one, other = measure(found), measure(expected)
        assert abs(float(one.mean() - other.mean())) < 4 * standard_error(one, other)
    often, spread = found.double().mean(0), math.sqrt(gamma * (1 - gamma) / 500)
    assert (often - expected.double().mean(0)).abs().max() < 4.5 * spread


def test_scattered_cells_would_have_more_borders() -> None:
    """So that the test above could fail."""
    scattered = torch.rand(500, 14, 14, generator=generator(0)) < 0.1
    assert borders(scattered).mean() > 2 * borders(drawn(500, PAPERS, 0.1)).mean()


@pytest.mark.parametrize("seed", range(5))
def test_a_single_block_is_a_rectangle_within_the_grid(seed: int) -> None:
    """At 8 of 196 cells the first block mostly ends the mask."""
    masks = drawn(300, PAPERS, 8 / 196, seed)
    heights, widths = masks.any(2).sum(1), masks.any(1).sum(1)
    whole = cells(masks) == heights * widths
    assert whole.double().mean() > 0.5
    sides = torch.stack([heights, widths]).double()[:, whole & (cells(masks) >= 6)]
    assert (sides.amin(0) / sides.amax(0)).min() >= 1 / 5  # 0.3, rounded to whole cells
    assert sides.max() < 14


@EVERY_GRID
@pytest.mark.parametrize("gamma", [0, 0.1, 0.3, 0.5, 0.9, 1])
def test_never_more_than_the_target_is_covered(grid: Grid, gamma: float) -> None:
    masks = drawn(200, grid, gamma)
    assert masks.shape == (200, *grid)
    assert masks.dtype == torch.bool
    assert cells(masks).max() <= target_cells(grid, gamma)


@pytest.mark.parametrize("grid", GRIDS[:-1], ids=str)
def test_most_of_the_target_is_covered_on_any_grid(grid: Grid) -> None:
    """Also on a single row of patches, where no block can be lower than the grid."""
    for gamma in (0.3, 0.5, 0.7):
        wanted = target_cells(grid, gamma)
        assert cells(drawn(300, grid, gamma)).mean() >= 0.9 * wanted
        assert wanted >= 1


@EVERY_GRID
def test_nothing_is_covered_at_zero(grid: Grid) -> None:
    assert not drawn(50, grid, 0).any()


def test_a_share_below_one_cell_covers_nothing() -> None:
    assert target_cells((2, 2), 0.2) == 0
    assert not drawn(50, (2, 2), 0.2).any()


def test_shares_that_are_whole_cells_lose_none_by_rounding() -> None:
    """0.07 * 100 is a little more than 7 in binary, 0.29 * 100 a little less than 29."""
    for percent in range(101):
        assert target_cells((10, 10), percent / 100) == percent


def test_masks_differ_and_are_the_seeds() -> None:
    one, again, other = drawn(64, PAPERS, 0.3), drawn(64, PAPERS, 0.3), drawn(64, PAPERS, 0.3, 1)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert len(one.flatten(1).unique(dim=0)) == 64


def test_without_a_generator_the_global_one_draws() -> None:
    torch.manual_seed(3)
    one = block_masks(8, PAPERS, 0.3)
    torch.manual_seed(3)
    assert torch.equal(block_masks(8, PAPERS, 0.3), one)
