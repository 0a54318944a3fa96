"""A network that corrects what seams say, trained on public images."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from keyhole.attacks.jigsaw.learned import Unscrambler
from keyhole.attacks.jigsaw.regions import build_cells, reorder_pieces
from keyhole.data import load
from keyhole.defenses.regions import find_sensitive_regions
from keyhole.seeds import generator
from keyhole_studies.unscrambler_training import (
    PublicImages,
    UnscramblerSettings,
    train_unscrambler,
)
from keyhole_studies.unscrambler_training.puzzles import LabelledPuzzle, make_puzzle
from keyhole_studies.unscrambler_training.training import puzzle_loss

SMALL = UnscramblerSettings(steps=3, puzzles=4, batch_size=4, width=16, depth=1)


@pytest.fixture(scope="module")
def digits() -> PublicImages:
    return PublicImages(load("digits", image_size=28).pixels(range(40)), (28,), mirrored=False)


@pytest.fixture(scope="module")
def some(digits: PublicImages) -> LabelledPuzzle:
    return make_puzzle(digits, 6, generator(1))


def test_an_untrained_network_believes_the_seams(some: LabelledPuzzle) -> None:
    with torch.no_grad():
        logits = Unscrambler(width=16, depth=1)(some.cells, some.belief)
    said = torch.softmax(logits, -1)[some.in_doubt.any(-1)]
    assert torch.allclose(said, some.belief[some.in_doubt.any(-1)], atol=0.02)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (25, 25), (56, 46), (17, 40)])
def test_where_a_piece_lies_tells_it_nothing(size: tuple[int, int]) -> None:
    """The same pieces in another order get the same logits, in that order."""
    image = torch.rand(1, 1, *size, generator=generator(2))
    cells = build_cells(image, torch.ones_like(find_sensitive_regions(image)))
    belief = torch.softmax(torch.randn(*cells.forbidden.shape, generator=generator(3)), -1)
    network = Unscrambler(width=16, depth=2)
    torch.nn.init.normal_(network.asked.weight)
    order = torch.randperm(16, generator=generator(4))
    whole = cells.real.all(-1)
    order = torch.where(whole[..., None], order, torch.arange(16))
    moved = reorder_pieces(cells.pieces, order[None, None])
    index = order[None, :, :, None, :].expand_as(belief)
    with torch.no_grad():
        straight = network(cells, belief)
        other = network(replace(cells, pieces=moved), belief.gather(-1, index))
    assert torch.allclose(straight.gather(-1, index), other, atol=1e-3)


def test_it_learns(digits: PublicImages, some: LabelledPuzzle) -> None:
    """After a few steps the answers surprise it less than they do one who only knows seams."""
    curve: list[float] = []
    settings = UnscramblerSettings(steps=60, puzzles=64, batch_size=8, width=32, depth=1, lr=1e-2)
    network = train_unscrambler([digits], settings, progress=lambda step, loss: curve.append(loss))
    with torch.no_grad():
        before = puzzle_loss(Unscrambler(width=32, depth=1), some)
        after = puzzle_loss(network, some)
    assert len(curve) == 60
    assert float(after) < 0.9 * float(before)


def test_the_same_settings_make_the_same_network(digits: PublicImages) -> None:
    photos = PublicImages(load("photos", image_size=32).pixels([0, 1]))
    one, two = (train_unscrambler([digits, photos], SMALL).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_training_ends_in_time(digits: PublicImages) -> None:
    steps: list[int] = []
    settings = replace(SMALL, steps=10_000, seconds=0.3)
    train_unscrambler([digits], settings, progress=lambda step, loss: steps.append(step))
    assert 0 < len(steps) < 1000
