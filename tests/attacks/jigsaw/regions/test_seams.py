from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions.cells import build_cells
from keyhole.attacks.jigsaw.regions.seams import (
    IMPOSSIBLE_PAIR,
    compute_border_misfits,
    compute_region_seam_costs,
    decorrelate_colours,
    extrapolate_borders,
    find_inner_pairs,
    find_outer_pairs,
)
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator


@pytest.fixture
def cells(hide):
    image = hide(3, 28, 28).truth
    return build_cells(image, find_sensitive_regions(image))


def test_the_total_is_the_sum_over_all_seams(cells) -> None:
    costs = compute_region_seam_costs(cells, cells.pieces)
    order = torch.rand(*cells.coarse.shape, 16, generator=generator(0, "order")).argsort(-1)
    totals = torch.zeros(2)
    for b in range(2):
        for row in range(16):
            for column in range(16):
                R, y, Q, x = *divmod(row, 4), *divmod(column, 4)
                here = order[b, R, Q, 4 * y + x]
                if x < 3:
                    totals[b] += costs.right[b, R, Q, here, order[b, R, Q, 4 * y + x + 1]]
                elif Q < 3:
                    totals[b] += costs.next_right[b, R, Q, here, order[b, R, Q + 1, 4 * y]]
                if y < 3:
                    totals[b] += costs.below[b, R, Q, here, order[b, R, Q, 4 * y + 4 + x]]
                elif R < 3:
                    totals[b] += costs.next_below[b, R, Q, here, order[b, R + 1, Q, x]]
    assert torch.allclose(costs.total(order), totals, rtol=1e-4)


def test_the_true_order_costs_less_than_any_drawn(cells) -> None:
    costs = compute_region_seam_costs(cells, cells.pieces)
    truth = torch.arange(16).expand(*cells.coarse.shape, 16)
    drawn = torch.rand(truth.shape, generator=generator(0, "order")).argsort(-1)
    fine = ~cells.coarse[..., None]
    assert (costs.total(truth) < costs.total(torch.where(fine & cells.real, drawn, truth))).all()


def test_a_ramp_goes_on_without_misfit_at_half_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.attacks.jigsaw.regions.seams.EXTRAPOLATION", 0.5)
    ramp = torch.arange(8.0).expand(1, 4, 8)
    ahead, behind = extrapolate_borders(torch.stack([ramp[..., :4], ramp[..., 4:]]))
    found = compute_border_misfits(ahead, behind)
    assert float(found[0, 1]) == pytest.approx(0, abs=1e-6)
    assert float(found[1, 0]) > 1


def test_fields_have_uncorrelated_gradients_of_variance_one() -> None:
    image = torch.rand(2, 3, 28, 28, generator=generator(0, "image"))
    cells = build_cells(image, find_sensitive_regions(image))
    fields = decorrelate_colours(cells, cells.pieces).movedim(4, 1)[:, :, cells.real]
    steps = torch.cat([fields.diff(dim=axis).flatten(3) for axis in (-1, -2)], -1).flatten(2)
    correlation = steps @ steps.mT / steps.shape[-1]
    assert torch.allclose(correlation, torch.eye(3).expand(2, 3, 3), atol=0.01)


def test_who_may_be_neighbours(cells) -> None:
    inside = find_inner_pairs(cells, across=True)
    whole = cells.real.all(-1)
    assert inside[cells.coarse & whole].sum((1, 2)).unique().tolist() == [24]  # 8 faces, 3 others
    assert inside[~cells.coarse & whole].sum((1, 2)).unique().tolist() == [16 * 15]
    meet = find_outer_pairs(cells, across=False)
    coarse = cells.coarse[:, :-1] & cells.coarse[:, 1:] & whole[:-1] & whole[1:]
    fine = ~cells.coarse[:, :-1] & ~cells.coarse[:, 1:] & whole[:-1] & whole[1:]
    assert set(meet[coarse].sum((1, 2)).tolist()) <= {32}
    assert set(meet[fine].sum((1, 2)).tolist()) <= {256}


def test_pieces_that_cannot_be_neighbours_are_apart(cells) -> None:
    costs = compute_region_seam_costs(cells, cells.pieces)
    possible = find_inner_pairs(cells, across=True)
    assert (costs.right[~possible] == IMPOSSIBLE_PAIR).all()
    assert float(costs.right[possible].max()) < 10
