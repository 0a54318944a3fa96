from __future__ import annotations

from dataclasses import replace

import torch

from keyhole.attacks.jigsaw.regions.cells import build_cells, reorder_pieces
from keyhole.attacks.jigsaw.regions.planes import (
    build_pixel_covariance,
    compute_plane_misfits,
    match_planes,
)
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator


def test_partners_are_found_by_texture() -> None:
    draw = generator(0, "planes")
    grey = torch.rand(3, 1, 32, 32, generator=draw)
    image = torch.cat([0.5 * grey, 0.6 * grey + 0.1, 0.4 * grey + 0.3], 1)
    image += 0.01 * torch.randn(image.shape, generator=draw)
    cells = build_cells(image, torch.ones(3, 4, 4, dtype=torch.bool))
    mixed = torch.rand(3, 3, 4, 4, 16, generator=draw).argsort(-1)
    cells = replace(cells, pieces=reorder_pieces(cells.pieces, mixed))
    places = mixed.gather(4, match_planes(cells))
    share = (places == places[:, 1:2]).double().mean()
    assert share > 0.97


def test_the_middle_plane_keeps_its_pieces() -> None:
    image = torch.rand(1, 3, 28, 28)
    found = match_planes(build_cells(image, find_sensitive_regions(image)))
    assert torch.equal(found[:, 1], torch.arange(16).expand_as(found[:, 1]))
    assert torch.equal(found.sort(-1).values, torch.arange(16).expand_as(found))


def test_the_same_texture_is_nearer_than_another() -> None:
    blocks = torch.randn(5, 16, 16, generator=generator(0, "blocks"))
    found = compute_plane_misfits(blocks, blocks)
    assert torch.equal(found.argmin(-1), torch.arange(16).expand(5, 16))
    assert torch.allclose(found, found.mT, atol=1e-3)


def test_the_covariance_is_one() -> None:
    assert float(torch.linalg.eigvalsh(build_pixel_covariance(4)).min()) > 0
