"""Labels are found by what solves the last layer's equations."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.analytic.head_inputs import HeadEquations
from keyhole.attacks.analytic.head_labels import (
    count_sure_labels,
    exchange_one,
    search_labels,
    solve_with_labels,
)

WIDTH, CLASSES = 40, 10
CONFIDENT = 0.3
"""A standard deviation of weights at which the softmax is far from even, as after training."""


def equations(
    labels: list[int], seed: int = 0, *, bias: bool = True
) -> tuple[HeadEquations, Tensor]:
    """A batch's equations with the right labels, and its inputs."""
    draw = torch.Generator().manual_seed(seed)
    weight = CONFIDENT * torch.randn(CLASSES, WIDTH, generator=draw, dtype=torch.double)
    inputs = torch.rand(len(labels), WIDTH, generator=draw, dtype=torch.double)
    onehot = F.one_hot(torch.tensor(labels), CLASSES).double()
    each = (inputs @ weight.T).softmax(1) - onehot
    summed_bias = each.sum(0) if bias else None
    zeros = torch.zeros(CLASSES, dtype=torch.double) if bias else None
    found = HeadEquations(weight, zeros, each.T @ inputs, summed_bias, torch.tensor(labels))
    return found, inputs


@pytest.mark.parametrize("labels", [[1, 4, 7], [2, 3, 5, 8], [0, 2, 6, 6]])
def test_wrong_labels_are_put_right(labels: list[int]) -> None:
    true, inputs = equations(labels)
    wrong = replace(true, labels=torch.tensor([9, 9, 9, 9][: len(labels)]))
    assert wrong.solve_best(2).error > 1e-3
    found = solve_with_labels(wrong)
    assert found is not None
    solved, named = found
    assert sorted(named.tolist()) == sorted(labels)
    assert torch.cdist(solved.inputs, inputs).amin(1).max() < 1e-4 * inputs.norm(dim=1).min()


def test_right_labels_are_kept_whatever_their_order() -> None:
    true, _ = equations([8, 3, 5])
    found = solve_with_labels(true)
    assert found is not None
    assert sorted(found[1].tolist()) == [3, 5, 8]


def test_inputs_come_in_the_order_of_the_labels_found() -> None:
    true, inputs = equations([8, 3, 5])
    found = search_labels(replace(true, labels=torch.tensor([0, 0, 0])))
    assert found is not None
    order = [[8, 3, 5].index(label) for label in found[1].tolist()]
    assert torch.allclose(found[0].inputs, inputs[order], atol=1e-4)


@pytest.mark.parametrize("seed", range(20))
def test_what_the_bias_proves_is_true(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (6,), generator=draw).tolist()
    sure = count_sure_labels(equations(labels, seed)[0])
    assert sure is not None
    assert not Counter(sure) - Counter(labels)


def test_an_even_softmax_proves_every_label_that_occurs() -> None:
    true, _ = equations([1, 1, 4])
    even = replace(
        true, summed_bias=torch.tensor([0.3, -1.7, *[0.3] * 2, -0.7, *[0.3] * 5]).double()
    )
    assert count_sure_labels(even) == [1, 1, 4]


def test_without_a_bias_nothing_is_searched_for() -> None:
    true, _ = equations([1, 4, 7], bias=False)
    assert count_sure_labels(true) is None
    assert search_labels(true) is None


def test_large_batches_are_not_searched() -> None:
    """A choice of labels takes hundreds of their tables of slopes."""
    true, _ = equations([1, 4, 7])
    assert search_labels(true) is not None
    classes = torch.zeros(5000, dtype=torch.double)
    wide = replace(
        true,
        weight=torch.zeros(5000, WIDTH).double(),
        bias=classes,
        summed_bias=torch.cat([true.summed_bias, classes[CLASSES:]]),
    )
    assert search_labels(wide) is None


def test_every_open_label_is_exchanged_once_for_every_class() -> None:
    found = list(exchange_one([1], [1, 2, 3], range(CLASSES)))
    assert len(found) == len({tuple(each) for each in found}) == 2 * (CLASSES - 1)
    assert all(each[0] == 1 for each in found)
