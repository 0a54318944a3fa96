from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions.cells import (
    FORBIDDEN,
    build_cells,
    join_pieces,
    reorder_pieces,
)
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.errors import DoesNotFit
from keyhole.seeds import generator


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (25, 25), (56, 46), (8, 8)])
def test_cut_and_pasted_is_as_before(size: tuple[int, int]) -> None:
    image = torch.rand(2, 3, *size)
    assert torch.equal(
        join_pieces(build_cells(image, find_sensitive_regions(image)).pieces, *size), image
    )


def test_strips_have_fewer_cells() -> None:
    image = torch.rand(1, 1, 28, 28)
    found = build_cells(image, find_sensitive_regions(image))
    assert found.real.sum(-1).tolist() == [[16, 16, 16, 8]] * 3 + [[8, 8, 8, 4]]


def test_strips_of_smaller_blocks_have_none() -> None:
    image = torch.rand(1, 1, 25, 25)
    found = build_cells(image, find_sensitive_regions(image))
    assert found.real.sum(-1).tolist() == [[16, 16, 16, 0]] * 3 + [[0] * 4]


def test_only_the_cells_of_fine_regions_take_every_piece() -> None:
    image = torch.rand(1, 1, 32, 32)
    found = build_cells(image, find_sensitive_regions(image))
    places = (found.forbidden < FORBIDDEN).sum(-1)
    assert places[found.coarse].unique().tolist() == [4]
    assert places[~found.coarse].unique().tolist() == [16]


def test_blocks_of_coarse_regions_move_as_wholes() -> None:
    image = torch.rand(1, 1, 32, 32, generator=generator(0, "image"))
    found = build_cells(image, find_sensitive_regions(image))
    costs = torch.rand(*found.coarse.shape, 16, 16, generator=generator(1, "costs"))
    order = found.assign(costs)[found.coarse]
    corner = torch.tensor([0, 2, 8, 10])
    for quarter in (0, 1, 4, 5):
        assert torch.equal(order[:, corner + quarter], order[:, corner] + quarter)
    assert not torch.equal(order, torch.arange(16).expand_as(order))


def test_the_cost_of_a_whole_block_is_its_quarters_sum() -> None:
    image = torch.rand(1, 1, 32, 32)
    found = build_cells(image, torch.zeros(1, 4, 4, dtype=torch.bool))
    costs = torch.rand(1, 4, 4, 16, 16)
    pairs = [(2, 8), (3, 9), (6, 12), (7, 13)]  # the upper right block in the lower left's place
    whole = sum(costs[..., cell, piece] for cell, piece in pairs)
    assert torch.allclose(found.sum_over_blocks(costs)[..., 6, 12], whole)


def test_pieces_take_an_order_for_each_plane() -> None:
    pieces = torch.rand(1, 2, 1, 1, 16, 2, 2)
    order = torch.stack([torch.randperm(16), torch.randperm(16)]).view(1, 2, 1, 1, 16)
    assert torch.equal(
        reorder_pieces(pieces, order)[0, 1, 0, 0, 3], pieces[0, 1, 0, 0, order[0, 1, 0, 0, 3]]
    )


@pytest.mark.parametrize(("side", "block", "hint"), [(4, None, "no 4x4 blocks"), (32, 8, "8 px")])
def test_says_what_it_cannot_cut(side: int, block: int | None, hint: str) -> None:
    image = torch.rand(1, 1, side, side)
    with pytest.raises(DoesNotFit, match=hint):
        build_cells(image, find_sensitive_regions(image), block)
