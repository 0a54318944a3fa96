from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole.seeds import derive, generator, seeded_globally


def test_seeds_are_the_same_on_every_machine() -> None:
    assert derive(0, "weights") == 133441691874178746
    assert derive(3, "victim", 7) == 9166940765134469272


@given(st.integers(), st.lists(st.one_of(st.text(), st.integers())))
def test_seeds_fit_into_63_bits(seed: int, path: list[str | int]) -> None:
    assert 0 <= derive(seed, *path) < 2**63


def test_every_part_of_the_path_counts() -> None:
    paths = [(0,), (1,), (0, "a"), (0, "b"), (0, "a", 1), (0, "a", 2), (0, 1, "a"), (0, "ab")]
    assert len({derive(*path) for path in paths}) == len(paths)


def test_generators_of_one_place_draw_the_same() -> None:
    one, two, other = generator(3, "x"), generator(3, "x"), generator(3, "y")
    first = torch.rand(5, generator=one)
    assert torch.equal(first, torch.rand(5, generator=two))
    assert not torch.equal(first, torch.rand(5, generator=other))


def test_the_global_generator_is_seeded_inside_the_block_only(
    same_rng: Callable[[], bool],
) -> None:
    draws = []
    for _ in range(2):
        with seeded_globally(7):
            draws.append(torch.rand(4))
    assert torch.equal(*draws)
    assert same_rng()


def test_the_global_generator_is_put_back_after_an_error(same_rng: Callable[[], bool]) -> None:
    with pytest.raises(RuntimeError, match="negative dimension"), seeded_globally(7):
        torch.rand(torch.randint(-5, -1, ()))
    assert same_rng()
