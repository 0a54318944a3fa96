"""Tensors' memory is counted as they come and go."""

from __future__ import annotations

import torch

from keyhole.attacks.matching.live_memory import LiveMemory, measure_peak

KILOBYTE = 256
"""Numbers in float32."""


def test_what_is_freed_no_longer_counts() -> None:
    with LiveMemory() as memory:
        for _ in range(5):
            a = torch.ones(KILOBYTE)
            b = a + 1
            del a
        assert memory.live == 1024
        del b
    assert (memory.live, memory.peak) == (0, 3 * 1024)


def test_views_and_changes_in_place_take_nothing() -> None:
    weights = torch.ones(16, 16)
    with LiveMemory() as memory:
        turned = weights.T
        turned.mul_(2)
        weights[0].zero_()
    assert memory.peak == 0


def test_what_backward_keeps_counts_until_it_is_done() -> None:
    weights = torch.ones(KILOBYTE, requires_grad=True)

    def work() -> None:
        torch.autograd.grad((weights.sin().cos()).sum(), weights)

    assert measure_peak(work) >= 3 * 1024
    assert measure_peak(work) == measure_peak(work)


def test_several_results_of_one_operation_count() -> None:
    assert measure_peak(lambda: torch.ones(KILOBYTE).sort()) == (1 + 1 + 2) * 1024
