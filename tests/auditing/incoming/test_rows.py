"""Copies, ladders, constant rows and half-negative rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from altered_models import random_rows
from keyhole.auditing.incoming.rows import check_rows, find_copies
from keyhole.auditing.incoming.subject import IncomingModel


def alarms(weight: Tensor, bias: Tensor | None = None) -> list[str]:
    tensors = {"first.weight": weight, "head.weight": random_rows(10, len(weight), 9)}
    return [
        alarm.name
        for alarm in check_rows(
            IncomingModel(tensors if bias is None else {**tensors, "first.bias": bias})
        )
    ]


@pytest.mark.parametrize("width", [9, 16, 17, 64, 300])
def test_random_rows_raise_nothing(width: int) -> None:
    assert alarms(random_rows(200, width)) == []


@pytest.mark.parametrize("width", [9, 64, 300])
def test_copies_are_found_among_other_rows_whatever_their_scale_and_sign(width: int) -> None:
    rows = random_rows(100, width)
    chosen = torch.tensor([3, 20, 50, 51, 60, 70, 80, 99])
    scale = torch.tensor([1.0, 0.01, -3.0, 2.0, -0.5, 7.0, 0.3, -1.0])
    rows[chosen] = scale[:, None] * rows[3]
    assert sorted(find_copies(rows).tolist()) == chosen.tolist()
    assert alarms(rows) == ["copied rows"]


def test_few_copies_are_no_ladder() -> None:
    rows = random_rows(100, 64)
    rows[:7] = rows[0]
    assert alarms(rows) == []


def test_different_biases_make_a_ladder_of_copies() -> None:
    rows = random_rows(1, 64).repeat(8, 1)
    assert alarms(rows, torch.zeros(8)) == ["copied rows"]
    assert alarms(rows, torch.linspace(-1, 1, 8)) == ["ladder"]


def test_any_mixture_of_one_row_is_still_that_row() -> None:
    """A rotation of a ladder's rows leaves them multiples of one row."""
    rotation = torch.linalg.qr(random_rows(32, 32)).Q
    rows = rotation @ (torch.rand(32, 1) + 1) * random_rows(1, 64, 1)
    assert alarms(rows, torch.linspace(-1, 1, 32)) == ["ladder"]


def test_copies_with_little_noise_are_found_and_with_much_are_not() -> None:
    """What hides the copies moves their thresholds as well."""
    copies = random_rows(1, 256).repeat(32, 1)
    noise = random_rows(32, 256, 1)
    assert alarms(copies + 0.05 * noise) == ["copied rows"]
    assert alarms(copies + 0.3 * noise) == []


def test_a_large_layer_is_compared_in_part() -> None:
    rows = random_rows(6000, 40)
    assert len(find_copies(rows)) <= 1
    rows[::2] = rows[0]
    assert len(find_copies(rows)) > 1000


def test_rows_of_zeros_are_no_copies() -> None:
    assert alarms(torch.zeros(20, 64)) == []


def test_the_last_layer_may_have_copies() -> None:
    """Classes that no client has ever seen train alike."""
    tensors = {"1.weight": random_rows(20, 64), "2.weight": random_rows(1, 20).repeat(10, 1)}
    assert list(check_rows(IncomingModel(tensors))) == []


def test_a_row_of_equal_weights_is_found() -> None:
    rows = random_rows(20, 64)
    rows[7] = 1 / 64
    assert alarms(rows) == ["constant rows"]


def test_rows_with_exactly_half_of_their_weights_negative_are_found() -> None:
    size = random_rows(20, 64).abs()
    signs = torch.ones(64)
    signs[:32] = -1
    mixed = torch.stack([signs[torch.randperm(64)] for _ in range(20)])
    assert alarms(size * mixed) == ["trap rows"]


def test_rows_that_mix_few_directions_raise_an_alarm() -> None:
    mixed = random_rows(100, 20) @ random_rows(20, 64, seed=1)
    assert alarms(mixed) == ["few directions"]
    assert alarms(mixed + 0.01 * random_rows(100, 64, seed=2)) == []
