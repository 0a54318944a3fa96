"""A network that corrects what seams say, trained on public images."""

from __future__ import annotations

import pytest
import torch

from keyhole.attacks.unshuffle.learned import Album, Lesson, Unscrambler, learn
from keyhole.attacks.unshuffle.learned.puzzles import Puzzle, puzzle
from keyhole.attacks.unshuffle.learned.training import surprise
from keyhole.attacks.unshuffle.regions.cells import Cells, cells
from keyhole.data import load
from keyhole.defenses.regions import sensitive
from keyhole.seeds import generator

SMALL = Lesson(steps=3, puzzles=4, batch_size=4, width=16, depth=1)


@pytest.fixture(scope="module")
def digits() -> Album:
    return Album(load("digits", image_size=28).pixels(range(40)), (28,), mirrored=False)


@pytest.fixture(scope="module")
def some(digits: Album) -> Puzzle:
    return puzzle(digits, 6, generator(1))


def test_an_untrained_network_believes_the_seams(some: Puzzle) -> None:
    with torch.no_grad():
        logits = Unscrambler(width=16, depth=1)(some.parts, some.belief)
    said = torch.softmax(logits, -1)[some.asked.any(-1)]
    assert torch.allclose(said, some.belief[some.asked.any(-1)], atol=0.02)


@pytest.mark.parametrize("size", [(32, 32), (64, 64), (25, 25), (56, 46), (17, 40)])
def test_where_an_item_lies_tells_it_nothing(size: tuple[int, int]) -> None:
    """The same items in another order get the same logits, in that order."""
    image = torch.rand(1, 1, *size, generator=generator(2))
    parts = cells(image, torch.ones_like(sensitive(image)))
    belief = torch.softmax(torch.randn(*parts.cannot.shape, generator=generator(3)), -1)
    network = Unscrambler(width=16, depth=2)
    torch.nn.init.normal_(network.asked.weight)
    order = torch.randperm(16, generator=generator(4))
    whole = parts.real.all(-1)
    order = torch.where(whole[..., None], order, torch.arange(16))
    moved = parts.items.gather(4, order[None, None, ..., None, None].expand_as(parts.items))
    index = order[None, :, :, None, :].expand_as(belief)
    with torch.no_grad():
        straight = network(parts, belief)
        other = network(Cells(moved, parts.coarse, parts.real), belief.gather(-1, index))
    assert torch.allclose(straight.gather(-1, index), other, atol=1e-3)


def test_it_learns(digits: Album, some: Puzzle) -> None:
    """After a few steps the answers surprise it less than they do one who only knows seams."""
    curve: list[float] = []
    lesson = Lesson(steps=60, puzzles=64, batch_size=8, width=32, depth=1, lr=1e-2)
    network = learn([digits], lesson, told=lambda step, loss: curve.append(loss))
    with torch.no_grad():
        before = surprise(Unscrambler(width=32, depth=1), some)
        after = surprise(network, some)
    assert len(curve) == 60
    assert float(after) < 0.9 * float(before)


def test_the_same_lesson_makes_the_same_network(digits: Album) -> None:
    photos = Album(load("photos", image_size=32).pixels([0, 1]))
    one, two = (learn([digits, photos], SMALL).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_lesson_ends_in_time(digits: Album) -> None:
    steps: list[int] = []
    lesson = Lesson(steps=10_000, seconds=0.3, puzzles=4, batch_size=4, width=16, depth=1)
    learn([digits], lesson, told=lambda step, loss: steps.append(step))
    assert 0 < len(steps) < 1000
