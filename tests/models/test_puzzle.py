from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import permutations

import pytest
import torch
from torch import Tensor

from keyhole.errors import DoesNotFit
from keyhole.models.puzzle import (
    Puzzle,
    PuzzlePool,
    PuzzleRules,
    apply_puzzle,
    cut_patches,
    draw_puzzle,
    draw_random_puzzle,
    join_patches,
    random_orders,
    solved_puzzle,
)
from keyhole.seeds import generator

SHAPES = pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((2, 3, 8, 8), (4, 4)),
        ((3, 1, 6, 20), (3, 5)),
        ((1, 4, 12, 4), (2, 4)),
        ((2, 2, 5, 6), (5, 2)),
    ],
    ids=str,
)


def numbered(*shape: int) -> Tensor:
    """Images without two pixels alike."""
    count = int(torch.tensor(shape).prod())
    return torch.arange(count, dtype=torch.float).view(shape)


def sliced(images: Tensor, patch: tuple[int, int]) -> Tensor:
    """Patches ``[B, N, C, tall, wide]`` by plain slices."""
    tall, wide = patch
    return torch.stack(
        [
            images[:, :, top : top + tall, left : left + wide]
            for top in range(0, images.shape[2], tall)
            for left in range(0, images.shape[3], wide)
        ],
        dim=1,
    )


@SHAPES
def test_patches_are_cut_row_by_row_and_pasted_back(
    shape: tuple[int, ...], patch: tuple[int, int]
) -> None:
    images, grid = numbered(*shape), (shape[2] // patch[0], shape[3] // patch[1])
    patches = cut_patches(images, grid)
    assert torch.equal(patches, sliced(images, patch).flatten(3))
    assert torch.equal(join_patches(patches, images.shape, grid), images)


@SHAPES
def test_slots_show_the_patches_that_the_order_names(
    shape: tuple[int, ...], patch: tuple[int, int]
) -> None:
    images, rules = numbered(*shape), PuzzleRules(0.5, patch)
    rows, columns = rules.grid(images)
    order = random_orders(torch.ones(shape[0], rows * columns, dtype=torch.bool), generator(0))
    found = sliced(apply_puzzle(images, Puzzle(torch.ones(order.shape), order), rules), patch)
    before = sliced(images, patch)
    for image in range(shape[0]):
        for slot in range(rows * columns):
            assert torch.equal(found[image, slot], before[image, order[image, slot]])


@pytest.mark.parametrize(
    "rules", [PuzzleRules(0.5, (4, 4)), PuzzleRules(0, (4, 4), pixels=True)], ids=str
)
def test_a_shuffled_image_has_the_same_pixels_elsewhere(rules: PuzzleRules) -> None:
    images = numbered(4, 3, 16, 16)
    found = apply_puzzle(images, draw_random_puzzle(images, rules, generator(0)), rules)
    assert not torch.equal(found, images)
    for one, other in zip(found, images, strict=True):
        assert torch.equal(one.flatten(1).sort(1).values, other.flatten(1).sort(1).values)


def test_colours_of_a_pixel_stay_together() -> None:
    rules = PuzzleRules(0, (4, 4), pixels=True)
    images = numbered(2, 1, 8, 8).repeat(1, 3, 1, 1)
    found = apply_puzzle(images, draw_random_puzzle(images, rules, generator(0)), rules)
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_memory_layout_stays(layout: torch.memory_format) -> None:
    images = numbered(2, 3, 8, 8).to(memory_format=layout)
    rules = PuzzleRules(0.5, (4, 4))
    found = apply_puzzle(images, draw_random_puzzle(images, rules, generator(0)), rules)
    assert found.stride() == images.stride()


def test_gradients_go_back_to_where_the_pixels_came_from() -> None:
    images, rules = numbered(2, 1, 8, 8).requires_grad_(), PuzzleRules(0.5, (2, 2))
    puzzle = draw_random_puzzle(images, rules, generator(0))
    found = apply_puzzle(images, puzzle, rules)
    (gradient,) = torch.autograd.grad((found * found.detach()).sum(), images)
    assert torch.equal(gradient, images.detach())


def test_a_solved_puzzle_is_the_image_itself() -> None:
    images, rules = numbered(2, 3, 8, 8), PuzzleRules(0.5, (4, 4))
    puzzle = solved_puzzle(images, rules)
    assert apply_puzzle(images, puzzle, rules) is images
    assert torch.equal(puzzle.kept, torch.ones(2, 4))


def test_orders_are_uniform_over_all_permutations() -> None:
    """Chi-square over the 24 orders of the four cells that are moved."""
    draws = 24 * 400
    moved = torch.tensor([[True, False, True, True, False, True]]).expand(draws, -1)
    found = random_orders(moved, generator(0))
    places = [0, 2, 3, 5]
    assert torch.equal(found[:, [1, 4]], torch.tensor([[1, 4]]).expand(draws, -1))
    counts = torch.tensor(
        [int((found[:, places] == torch.tensor(p)).all(1).sum()) for p in permutations(places)]
    )
    assert int(counts.sum()) == draws
    chi = float(((counts - 400.0) ** 2 / 400).sum())
    assert chi < 49.7  # 0.1 % of draws from 23 degrees of freedom lie beyond


def test_each_order_is_a_permutation_that_leaves_the_others_in_place() -> None:
    moved = torch.rand(300, 30, generator=generator(0)) < torch.linspace(0, 1, 300)[:, None]
    found = random_orders(moved, generator(1))
    assert torch.equal(found.sort(1).values, torch.arange(30).expand(300, -1))
    assert torch.equal(found[~moved], torch.arange(30).expand(300, -1)[~moved])


def test_covered_patches_and_only_they_change_places() -> None:
    images, rules = torch.zeros(400, 1, 14, 14), PuzzleRules(0.3, (1, 1))
    puzzle = draw_random_puzzle(images, rules, generator(0))
    assert puzzle.order is not None
    moved = puzzle.order != torch.arange(196)
    assert not (moved & puzzle.kept.bool()).any()
    covered = (1 - puzzle.kept).sum(1)
    assert float(covered.mean()) == pytest.approx(57.8, abs=0.3)
    fixed = ((1 - puzzle.kept) * ~moved).sum(1)
    assert float(fixed.mean()) == pytest.approx(1, abs=0.25)  # as of any permutation


def test_each_image_has_its_own_puzzle_unless_they_are_to_be_alike() -> None:
    images = torch.zeros(6, 1, 14, 14)
    own = draw_random_puzzle(images, PuzzleRules(0.3, (1, 1)), generator(0))
    alike = draw_random_puzzle(images, PuzzleRules(0.3, (1, 1), alike=True), generator(0))
    for puzzle, kinds in ((own, 6), (alike, 1)):
        assert puzzle.order is not None
        assert puzzle.kept.shape == puzzle.order.shape == (6, 196)
        assert len(puzzle.kept.unique(dim=0)) == kinds
        assert len(puzzle.order.unique(dim=0)) == kinds


def test_shuffled_pixels_cover_nothing_and_move_everything() -> None:
    images = torch.zeros(3, 2, 8, 12)
    puzzle = draw_random_puzzle(images, PuzzleRules(0, (4, 6), pixels=True), generator(0))
    assert puzzle.pixels is not None
    assert puzzle.kept.all()
    assert torch.equal(puzzle.pixels.sort(1).values, torch.arange(24).expand(3, -1))
    assert len(puzzle.pixels.unique(dim=0)) == 3


def test_all_patches_of_an_image_have_their_pixels_shuffled_alike() -> None:
    images, rules = numbered(1, 1, 8, 8), PuzzleRules(0, (4, 4), pixels=True)
    puzzle = draw_random_puzzle(images, rules, generator(0))
    assert puzzle.order is not None
    assert puzzle.pixels is not None
    found = cut_patches(apply_puzzle(images, puzzle, rules), (2, 2))[0, :, 0]
    before = cut_patches(images, (2, 2))[0, :, 0]
    assert torch.equal(found, before[puzzle.order[0]][:, puzzle.pixels[0]])


def test_only_a_share_of_the_batches_become_puzzles() -> None:
    images, rules, draw = torch.zeros(2, 1, 4, 4), PuzzleRules(0.5, (1, 1), share=0.3), generator(0)
    puzzles = [draw_random_puzzle(images, rules, draw) for _ in range(600)]
    untouched = [p for p in puzzles if p.order is None]
    assert 1 - len(untouched) / 600 == pytest.approx(0.3, abs=0.06)
    assert all(p.kept.all() for p in untouched)
    assert all(not p.kept.all() for p in puzzles if p.order is not None)


@pytest.mark.parametrize(
    ("rules", "nothing"),
    [
        (PuzzleRules(0), True),
        (PuzzleRules(0.1), False),
        (PuzzleRules(0, pixels=True), False),
        (PuzzleRules(0.1, share=0), True),
        (PuzzleRules(0, pixels=True, share=0), True),
    ],
)
def test_rules_that_move_nothing_are_known_as_such(rules: PuzzleRules, nothing: bool) -> None:
    assert rules.moves_nothing == nothing


def test_images_that_cannot_be_cut_are_told() -> None:
    with pytest.raises(DoesNotFit, match="30x32 cannot be cut into patches of 4x8 pixels"):
        PuzzleRules(0.1, (4, 8)).grid(torch.zeros(1, 3, 30, 32))


def taken(pool: PuzzlePool, times: int, count: int = 3, gamma: float = 0.3) -> Tensor:
    like = torch.zeros(1)
    return torch.cat([pool.take(count, (14, 14), gamma, like)[0] for _ in range(times)])


def test_a_pool_never_gives_a_mask_twice() -> None:
    pool = PuzzlePool()
    masks = torch.cat([taken(pool, 40), taken(pool, 3, count=50)])
    assert len(masks.flatten(1).unique(dim=0)) == 270


def test_a_pool_draws_as_often_as_it_must() -> None:
    """And from the global generator, by which its masks can be had again."""
    torch.manual_seed(5)
    one = taken(PuzzlePool(), PuzzlePool.BATCHES + 1)
    torch.manual_seed(5)
    again = taken(PuzzlePool(), PuzzlePool.BATCHES)
    assert torch.equal(one[: len(again)], again)
    assert len(one) > len(again)


def test_a_pool_draws_for_any_grid_and_share() -> None:
    pool, like = PuzzlePool(), torch.zeros(1)
    for grid, gamma in (((14, 14), 0.1), ((7, 7), 0.1), ((7, 7), 0.9), ((14, 14), 0.5)):
        kept, order = pool.take(20, grid, gamma, like)
        assert kept.shape == order.shape == (20, grid[0] * grid[1])
        assert float(1 - kept.double().mean()) == pytest.approx(gamma, abs=0.04)
        moved = order != torch.arange(order.shape[1])
        assert moved.any()
        assert not (moved & kept.bool()).any()


def test_copies_of_a_pool_give_other_masks() -> None:
    """Clients that copy one model must not cover the same patches, nor may a copy foretell them."""
    pool = PuzzlePool()
    taken(pool, 1)
    copied = copy.deepcopy(pool)
    assert copied.supply is None
    assert not torch.equal(taken(copied, 1), taken(pool, 1))


@pytest.mark.parametrize(
    "rules", [PuzzleRules(0.3, (2, 2)), PuzzleRules(0.3, (2, 2), alike=True)], ids=str
)
def test_laying_draws_from_the_global_generator(rules: PuzzleRules) -> None:
    images = torch.zeros(4, 1, 20, 20)

    def from_seed(seed: int) -> Puzzle:
        torch.manual_seed(seed)
        return draw_puzzle(images, rules, "pos", PuzzlePool())

    one, again, other = from_seed(1), from_seed(1), from_seed(2)
    assert one.order is not None
    assert again.order is not None
    assert torch.equal(one.kept, again.kept)
    assert torch.equal(one.order, again.order)
    assert not torch.equal(one.kept, other.kept)


def test_a_generator_leaves_the_global_one_alone(same_rng: Callable[[], bool]) -> None:
    draw_random_puzzle(torch.zeros(4, 1, 20, 20), PuzzleRules(0.3, (2, 2), share=0.9), generator(0))
    draw_random_puzzle(
        torch.zeros(4, 1, 20, 20), PuzzleRules(0.3, (2, 2), pixels=True), generator(0)
    )
    assert same_rng()
