from __future__ import annotations

import pytest
import torch

from keyhole.metrics import METRICS, mask_distances


def test_the_true_masks_are_at_no_distance() -> None:
    truth = [torch.rand(3, 4) > 0.5, torch.rand(3, 2, 5) > 0.5]
    assert mask_distances([t.double() for t in truth], truth) == {"mmd": [0.0], "mask": [0.0]}


def test_values_by_hand() -> None:
    truth = [torch.tensor([[True, False], [True, True]]), torch.tensor([[True] * 4, [False] * 4])]
    found = [torch.tensor([[1.0, 1.0], [0.5, 1.0]]), torch.tensor([[1.0] * 4, [0.5] * 4])]
    scores = mask_distances(found, truth)
    per_site = [(1 + 0.25) / 2, (0 + 4 * 0.25) / 2]
    assert scores["mmd"] == [pytest.approx(sum(per_site) / 2)]
    assert scores["mask"] == [pytest.approx(sum(per_site) / 6)]


def test_all_wrong_is_one_for_every_element() -> None:
    truth = [torch.rand(2, 10) > 0.3, torch.rand(2, 6) > 0.3]
    scores = mask_distances([(~t).float() for t in truth], truth)
    assert scores == {"mmd": [8.0], "mask": [1.0]}
    assert METRICS["mask"].high == 1.0


def test_masks_follow_the_order_in_which_images_were_found() -> None:
    truth = [torch.rand(4, 8) > 0.5]
    order = torch.tensor([2, 0, 3, 1])
    found = [torch.empty(4, 8)]
    found[0][order] = truth[0].float()
    assert mask_distances(found, truth, order)["mask"] == [0.0]
    assert mask_distances(found, truth)["mask"][0] > 0


def test_masks_of_several_steps_are_compared_in_their_own_order() -> None:
    truth = [torch.rand(4, 8) > 0.5]
    found = [truth[0].float()]
    assert mask_distances(found, truth, torch.tensor([1, 0]))["mask"] == [0.0]


def test_missing_sites_are_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        mask_distances([torch.zeros(1, 2)], [torch.zeros(1, 2), torch.zeros(1, 2)])


def test_less_distance_leaks_more() -> None:
    assert not METRICS["mmd"].leaks_high
    assert not METRICS["mask"].leaks_high
