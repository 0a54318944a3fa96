"""A network that guesses originals, trained on public images."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from keyhole.attacks.unshuffle.learned import Lesson, Unscrambler, learn
from keyhole.attacks.unshuffle.regions import thumbnail
from keyhole.data import load
from keyhole.defenses import Csvar


@pytest.mark.parametrize("shape", [(2, 1, 32, 32), (1, 3, 64, 64), (2, 1, 28, 28), (1, 1, 25, 25)])
def test_an_untrained_network_guesses_the_thumbnail(shape: tuple[int, ...]) -> None:
    hidden = Csvar().on_images(torch.rand(shape))
    network = Unscrambler(width=16, depth=1)
    torch.nn.init.zeros_(network.exit.bias)
    with torch.no_grad():
        assert torch.allclose(network(hidden), thumbnail(hidden), atol=1e-6)


def test_it_learns() -> None:
    """One image by heart: under another shuffle it is guessed far better than by its thumbnail."""
    photo = load("photos", image_size=32)
    lesson = Lesson(steps=80, batch_size=12, width=32, depth=1, lr=1e-2)
    curve: list[float] = []
    network = learn(photo.pixels([0]), lesson, told=lambda step, loss: curve.append(loss))
    truth = photo.images([0])
    hidden = Csvar().shuffle(truth, torch.tensor([99]))
    with torch.no_grad():
        guessed = F.mse_loss(network(hidden), truth)
        certain = F.mse_loss(thumbnail(hidden), truth)
    assert len(curve) == 80
    assert float(guessed) < 0.8 * float(certain)


def test_the_same_lesson_makes_the_same_network() -> None:
    images = load("photos", image_size=32).pixels([0, 1])
    lesson = Lesson(steps=3, batch_size=4, width=16, depth=1)
    for one, two in zip(
        learn(images, lesson).parameters(), learn(images, lesson).parameters(), strict=True
    ):
        assert torch.equal(one, two)


def test_a_lesson_ends_in_time() -> None:
    steps: list[int] = []
    images = load("photos", image_size=32).pixels([0])
    lesson = Lesson(steps=10_000, seconds=0.5, batch_size=4, width=16, depth=1)
    learn(images, lesson, told=lambda step, loss: steps.append(step))
    assert 0 < len(steps) < 1000
