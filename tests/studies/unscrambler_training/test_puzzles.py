"""Puzzles made of public images, with their answers."""

from __future__ import annotations

import torch

from keyhole.attacks.jigsaw.regions import build_cells
from keyhole.data import load
from keyhole.defenses import Csvar
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator
from keyhole_studies.unscrambler_training.puzzles import (
    NOISE,
    PublicImages,
    cut_crops,
    draw_noise,
    find_answers,
    make_puzzle,
)


def numbered(side: int = 8) -> torch.Tensor:
    return torch.arange(side * side, dtype=torch.uint8).view(1, 1, side, side)


def test_crops_are_squares_of_the_images() -> None:
    found = cut_crops(PublicImages(numbered(), (4,)), 20, generator(0)) * 255
    down, across = found.diff(dim=2), found.diff(dim=3)
    assert found.shape == (20, 1, 4, 4)
    assert torch.allclose(down, torch.full_like(down, 8.0), atol=1e-3)
    assert {round(float(step)) for step in across[:, 0, 0, 0]} == {1, -1}
    straight = cut_crops(PublicImages(numbered(), (4,), mirrored=False), 20, generator(0))
    assert bool((straight.diff(dim=3) > 0).all())


def test_the_answers_put_the_image_together() -> None:
    truth = torch.rand(2, 1, 32, 32, generator=generator(1))
    cells = build_cells(Csvar().shuffle(truth, torch.tensor([1, 2])), find_sensitive_regions(truth))
    right, in_doubt = find_answers(cells, truth)
    assert bool((right.sum(-1) == 1).all())
    assert bool((right.sum(-2) == 1).all())
    assert bool(in_doubt.all())
    laid = right.to(truth) @ cells.pieces[:, 0].flatten(4)
    assert torch.allclose(laid, cells.cut(truth)[:, 0].flatten(4))


def test_blocks_that_are_alike_are_no_question() -> None:
    truth = torch.zeros(1, 1, 32, 32)
    truth[..., :8, :8] = torch.rand(8, 8, generator=generator(1))
    cells = build_cells(Csvar().shuffle(truth, torch.tensor([1])), find_sensitive_regions(truth))
    right, in_doubt = find_answers(cells, truth)
    assert bool(in_doubt[0, 0, 0].all())
    assert int(in_doubt.sum()) == 16 * 16
    assert int(right[0, 0, 0].sum()) == 16


def test_half_of_the_images_are_noisy() -> None:
    drawn = draw_noise(torch.zeros(400, 1, 100), generator(0)).std(-1)
    clean = float((drawn == 0).double().mean())
    assert 0.4 < clean < 0.6
    assert 0.8 * NOISE < float(drawn.max()) < 1.3 * NOISE


def test_colour_is_matched_before_it_is_shown_in_grey() -> None:
    photos = PublicImages(load("photos", image_size=32).pixels([0, 1, 2]))
    made = make_puzzle(photos, 4, generator(0))
    assert made.cells.pieces.shape == (4, 1, 4, 4, 16, 2, 2)
    assert made.belief.shape == made.right.shape == made.in_doubt.shape == (4, 4, 4, 16, 16)
    assert torch.allclose(made.belief.sum(-1), torch.ones(4, 4, 4, 16), atol=0.01)
    known = (made.belief * made.right).sum(-1)[made.in_doubt.any(-1)]
    assert float(known.mean()) > 0.3
    assert made.choose(torch.tensor([2])).belief.shape == (1, 4, 4, 16, 16)
