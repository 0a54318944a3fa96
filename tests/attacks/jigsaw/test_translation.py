"""Moved images are moved back by the gap at their border."""

from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.translation import find_shift, move_back
from keyhole.attacks.jigsaw.undo import undo
from keyhole.data import load
from keyhole.defenses import Translation
from keyhole.defenses.ats import FILL, move
from keyhole.seeds import generator

MOVED = Translation(0.5, FILL)


@pytest.fixture(scope="module")
def photos() -> torch.Tensor:
    return load("photos", image_size=32).images(range(8))


@pytest.mark.parametrize(("down", "across"), [(0, 0.25), (0.125, 0), (-0.25, 0.125), (0, -0.4)])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_the_move_is_found_and_undone(
    photos: torch.Tensor, down: float, across: float, noise: float
) -> None:
    rows, columns = round(down * 32), round(across * 32)
    found = 0
    for image in photos:
        moved = move(image, down, across)
        moved = moved + noise * torch.randn(moved.shape, generator=generator(0))
        found += (find_shift(moved, MOVED, -2), find_shift(moved, MOVED, -1)) == (rows, columns)
    assert found >= 7
    back = undo(MOVED, [torch.stack([move(image, down, across) for image in photos])]).images
    inner = (slice(None), slice(None), slice(13, 19), slice(13, 19))
    exact = (back - photos)[inner].abs().flatten(1).amax(1) == 0
    assert int(exact.sum()) >= 7


def test_an_image_that_was_not_moved_stays(photos: torch.Tensor) -> None:
    """Unless its own border is one grey, as in one of these photos; black is another grey."""
    black_border = torch.zeros(1, 32, 32)
    black_border[:, 8:24, 12:20] = 0.9
    assert torch.equal(move_back(black_border, MOVED), black_border)
    assert sum(torch.equal(move_back(image, MOVED), image) for image in photos) >= 7


def test_a_gap_wider_than_any_move_is_no_gap() -> None:
    image = torch.rand(1, 32, 32, generator=generator(0))
    image[..., :20] = FILL
    assert find_shift(image, MOVED, -1) == 0
    assert find_shift(image, Translation(0.7, FILL), -1) == 20
