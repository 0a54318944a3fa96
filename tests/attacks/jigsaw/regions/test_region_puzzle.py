from __future__ import annotations

import torch

from keyhole.attacks.jigsaw.regions.cells import build_cells
from keyhole.attacks.jigsaw.regions.region_puzzle import compute_region_beliefs
from keyhole.attacks.jigsaw.regions.seams import RegionSeamCosts, compute_region_seam_costs
from keyhole.defenses.regions import find_sensitive_regions

STEADY = [1.0] * 20


def test_rows_and_columns_sum_to_one(hide) -> None:
    image = hide(3, 28, 28).shuffled
    cells = build_cells(image, find_sensitive_regions(image))
    found = compute_region_beliefs(compute_region_seam_costs(cells, cells.pieces), cells, STEADY)
    assert torch.allclose(found.sum(-1), torch.ones(found.shape[:-1]), atol=1e-4)
    assert torch.allclose(found.sum(-2), torch.ones(found.shape[:-1]), atol=0.1)


def test_without_seams_only_the_costs_of_places_count() -> None:
    image = torch.rand(1, 1, 8, 8)
    cells = build_cells(image, torch.ones(1, 2, 2, dtype=torch.bool))
    none = torch.zeros(1, 2, 2, 16, 16)
    blank = RegionSeamCosts(none, none, none[:, :, :1], none[:, :1])
    order = torch.randperm(16)
    unary = torch.where(order[:, None] == torch.arange(16), 0.0, 8.0).expand_as(none)
    assert torch.equal(
        compute_region_beliefs(blank, cells, STEADY, unary).argmax(-1), order.expand(1, 2, 2, 16)
    )
    evenly = compute_region_beliefs(blank, cells, STEADY)
    assert torch.allclose(evenly, torch.full_like(evenly, 1 / 16))


def test_certain_seams_and_one_known_piece_fix_all_others() -> None:
    cells = build_cells(torch.rand(1, 1, 8, 8), torch.ones(1, 2, 2, dtype=torch.bool))
    number = torch.arange(16)
    row, column = number // 4, number % 4
    fits = (row[:, None] == row) & (column[:, None] + 1 == column)
    right = torch.where(fits, 0.0, 8.0).expand(1, 2, 2, 16, 16)
    fits = (column[:, None] == column) & (row[:, None] + 1 == row)
    below = torch.where(fits, 0.0, 8.0).expand(1, 2, 2, 16, 16)
    costs = RegionSeamCosts(
        right, below, torch.zeros(1, 2, 1, 16, 16), torch.zeros(1, 1, 2, 16, 16)
    )
    found = compute_region_beliefs(costs, cells, STEADY)
    assert torch.equal(found.argmax(-1), number.expand(1, 2, 2, 16))


def test_a_regions_seams_speak_to_the_next(hide) -> None:
    hidden = hide(1, 32, 32, count=1)
    cells = build_cells(hidden.shuffled, find_sensitive_regions(hidden.shuffled))
    costs = compute_region_seam_costs(cells, cells.pieces)
    mute = RegionSeamCosts(costs.right, costs.below, costs.next_right * 0, costs.next_below * 0)
    with_, without = (compute_region_beliefs(c, cells, STEADY) for c in (costs, mute))
    assert with_.max(-1).values.mean() > without.max(-1).values.mean()
