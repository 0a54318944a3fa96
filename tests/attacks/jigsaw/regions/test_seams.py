from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions.cells import cells
from keyhole.attacks.jigsaw.regions.seams import (
    APART,
    borders,
    in_own_axes,
    may_adjoin,
    may_meet,
    misfit,
    seams,
)
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator


@pytest.fixture
def parts(hide):
    image = hide(3, 28, 28).truth
    return cells(image, find_sensitive_regions(image))


def test_the_total_is_the_sum_over_all_seams(parts) -> None:
    costs = seams(parts, parts.items)
    order = torch.rand(*parts.coarse.shape, 16, generator=generator(0, "order")).argsort(-1)
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


def test_the_true_order_costs_less_than_any_drawn(parts) -> None:
    costs = seams(parts, parts.items)
    truth = torch.arange(16).expand(*parts.coarse.shape, 16)
    drawn = torch.rand(truth.shape, generator=generator(0, "order")).argsort(-1)
    fine = ~parts.coarse[..., None]
    assert (costs.total(truth) < costs.total(torch.where(fine & parts.real, drawn, truth))).all()


def test_a_ramp_goes_on_without_misfit_at_half_a_pixel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.attacks.jigsaw.regions.seams.CONTINUED", 0.5)
    ramp = torch.arange(8.0).expand(1, 4, 8)
    ahead, behind = borders(torch.stack([ramp[..., :4], ramp[..., 4:]]))
    found = misfit(ahead, behind)
    assert float(found[0, 1]) == pytest.approx(0, abs=1e-6)
    assert float(found[1, 0]) > 1


def test_fields_have_uncorrelated_gradients_of_variance_one() -> None:
    image = torch.rand(2, 3, 28, 28, generator=generator(0, "image"))
    parts = cells(image, find_sensitive_regions(image))
    fields = in_own_axes(parts, parts.items).movedim(4, 1)[:, :, parts.real]
    steps = torch.cat([fields.diff(dim=axis).flatten(3) for axis in (-1, -2)], -1).flatten(2)
    correlation = steps @ steps.mT / steps.shape[-1]
    assert torch.allclose(correlation, torch.eye(3).expand(2, 3, 3), atol=0.01)


def test_who_may_be_neighbours(parts) -> None:
    inside = may_adjoin(parts, across=True)
    whole = parts.real.all(-1)
    assert inside[parts.coarse & whole].sum((1, 2)).unique().tolist() == [24]  # 8 faces, 3 others
    assert inside[~parts.coarse & whole].sum((1, 2)).unique().tolist() == [16 * 15]
    meet = may_meet(parts, across=False)
    coarse = parts.coarse[:, :-1] & parts.coarse[:, 1:] & whole[:-1] & whole[1:]
    fine = ~parts.coarse[:, :-1] & ~parts.coarse[:, 1:] & whole[:-1] & whole[1:]
    assert set(meet[coarse].sum((1, 2)).tolist()) <= {32}
    assert set(meet[fine].sum((1, 2)).tolist()) <= {256}


def test_items_that_cannot_be_neighbours_are_apart(parts) -> None:
    costs = seams(parts, parts.items)
    may = may_adjoin(parts, across=True)
    assert (costs.right[~may] == APART).all()
    assert float(costs.right[may].max()) < 10
