from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole.metrics import assign_reconstructions


@given(st.permutations(range(6)))
def test_a_shuffled_batch_is_put_in_order(order: list[int]) -> None:
    truth = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    assert truth[order][assign_reconstructions(truth[order], truth)].equal(truth)


@pytest.mark.parametrize("seed", range(5))
def test_the_assignment_has_the_least_total_error(seed: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    truth, found = torch.rand(2, 4, 1, 2, 2, generator=draws)
    errors = (found[None] - truth[:, None]).square().flatten(2).sum(2)
    least = min(
        sum(float(errors[i, j]) for i, j in enumerate(order))
        for order in itertools.permutations(range(4))
    )
    chosen = assign_reconstructions(found, truth)
    assert sorted(chosen.tolist()) == [0, 1, 2, 3]
    assert float(errors[torch.arange(4), chosen].sum()) == pytest.approx(least, abs=1e-5)


def test_no_reconstruction_serves_twice() -> None:
    truth = torch.tensor([[0.0], [0.1]]).view(2, 1, 1, 1)
    found = torch.tensor([[0.05], [9.0]]).view(2, 1, 1, 1)
    assert sorted(assign_reconstructions(found, truth).tolist()) == [0, 1]


def test_images_without_a_reconstruction_are_marked() -> None:
    truth = torch.eye(4).view(4, 1, 2, 2)
    assert assign_reconstructions(truth[[3, 1]] * 0.9, truth).tolist() == [-1, 1, -1, 0]


def test_more_reconstructions_than_images_are_borne() -> None:
    truth = torch.eye(4).view(4, 1, 2, 2)
    assert assign_reconstructions(truth, truth[[2, 0]]).tolist() == [2, 0]


def test_no_reconstruction_at_all_matches_nothing() -> None:
    assert assign_reconstructions(torch.empty(0, 1, 2, 2), torch.rand(3, 1, 2, 2)).tolist() == [
        -1,
        -1,
        -1,
    ]
