from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole.errors import DoesNotFit
from keyhole_studies.mjp.consistency import consistency, difference_norm


@pytest.mark.parametrize("shape", [(5, 8), (5, 4, 3, 3)], ids=str)
@pytest.mark.parametrize("squared", [True, False])
def test_the_difference_norm_is_numpys(shape: tuple[int, ...], squared: bool) -> None:
    one, other = torch.randn(shape), torch.randn(shape)
    gaps = (one.numpy().astype(float) - other.numpy()).reshape(5, -1)
    expected = np.array([np.linalg.norm(gap) for gap in gaps]) ** (2 if squared else 1)
    found = difference_norm(one, other, squared=squared)
    assert found.tolist() == pytest.approx(expected.tolist(), rel=1e-9)


def test_nothing_changed_is_no_difference_and_full_consistency() -> None:
    logits = torch.randn(6, 10)
    assert difference_norm(logits, logits).tolist() == [0.0] * 6
    assert consistency(logits, logits) == 1.0


@given(st.lists(st.booleans(), min_size=1, max_size=20))
def test_consistency_counts_the_predictions_that_stay(stays: list[bool]) -> None:
    before = torch.eye(3)[torch.arange(len(stays)) % 3]
    after = torch.where(torch.tensor(stays)[:, None], before * 7 - 1, before.roll(1, dims=1))
    assert consistency(before, after) == pytest.approx(sum(stays) / len(stays))


def test_only_the_first_place_matters_for_consistency() -> None:
    before = torch.tensor([[3.0, 2.0, 1.0]])
    assert consistency(before, torch.tensor([[0.2, 0.0, 0.1]])) == 1.0
    assert consistency(before, torch.tensor([[0.2, 0.3, 0.1]])) == 0.0


@pytest.mark.parametrize(
    ("one", "other"), [((2, 3), (3, 3)), ((2, 3), (2, 4)), ((3,), (3,)), ((0, 3), (0, 3))]
)
def test_answers_that_cannot_be_compared_are_refused(
    one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    for compare in (difference_norm, consistency):
        with pytest.raises(DoesNotFit, match="cannot compare answers"):
            compare(torch.zeros(one), torch.zeros(other))
