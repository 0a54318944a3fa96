"""What the guard refuses, and the change that it is asked about."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from guarded_updates import digits
from keyhole.auditing.guard import Guard, guard_mod, subtract_weights
from keyhole.errors import BadUpdate, BadValue


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_threshold_that_nothing_can_reach_or_miss_is_refused(
    vit: nn.Module, value: float
) -> None:
    with pytest.raises(BadValue, match="threshold: an SSIM between 0 and 1"):
        Guard(model=vit, data=digits, threshold=value)
    with pytest.raises(BadValue, match="threshold: an SSIM between 0 and 1"):
        guard_mod(value, client=lambda context: context)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(vit: nn.Module, value: float) -> None:
    with pytest.raises(BadValue, match="seconds: a number from 0 on"):
        Guard(model=vit, data=digits, seconds=value)
    with pytest.raises(BadValue, match="seconds: a number from 0 on"):
        guard_mod(client=lambda context: context, seconds=value)


def test_what_becomes_of_an_untested_update_is_one_of_two_things() -> None:
    with pytest.raises(BadValue, match="untested: it is 'withhold' or 'warn', got 'pass'"):
        guard_mod(client=lambda context: context, untested="pass")  # type: ignore[arg-type]


def test_what_training_changed_is_the_difference_of_two_files() -> None:
    before, after = {"w": torch.ones(2), "n": torch.tensor(3)}, {"w": torch.zeros(2)}
    with pytest.raises(BadUpdate, match="'n' is in one only"):
        subtract_weights(before, after)
    found = subtract_weights(before, {"w": torch.zeros(2), "n": torch.tensor(5)})
    assert found["w"].tolist() == [-1, -1]
    assert found["n"].item() == 2


@pytest.mark.parametrize("shape", [(5,), (1,)])
def test_two_files_of_different_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadUpdate):
        subtract_weights({"w": torch.ones(3)}, {"w": torch.ones(shape)})
