"""The generator draws any size, in [0, 1], by its codes alone."""

from __future__ import annotations

import pytest
import torch

from keyhole.seeds import generator
from keyhole_studies.hitaj import Generator

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 25, 25), (3, 32, 32), (1, 112, 92), (2, 7, 40), (1, 3, 5)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_size_is_drawn_whole_and_within_the_range(shape: tuple[int, int, int]) -> None:
    network = Generator(8, shape, features=4)
    images = network(network.sample_codes(3, generator(0)))
    assert images.shape == (3, *shape)
    assert images.min() >= 0
    assert images.max() <= 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_pixel_depends_on_the_code(shape: tuple[int, int, int]) -> None:
    network = Generator(8, shape, features=4)
    images = network(network.sample_codes(16, generator(0)))
    assert (images.std(0) > 0).all()


def test_codes_repeat_by_seed_and_are_standard_normal() -> None:
    network = Generator(32, (1, 8, 8))
    codes = network.sample_codes(500, generator(1))
    assert torch.equal(codes, network.sample_codes(500, generator(1)))
    assert abs(float(codes.mean())) < 0.03
    assert abs(float(codes.std()) - 1) < 0.03


def test_stages_can_be_entered_at_features() -> None:
    network = Generator(8, (3, 25, 30), features=4).eval()
    codes = network.sample_codes(2, generator(0))
    features = network.stages[:2](codes)
    assert torch.equal(network.crop(network.stages[2:](features)), network(codes))


def test_a_generator_can_learn_one_image() -> None:
    wanted = torch.zeros(1, 1, 12, 12)
    wanted[..., 3:9, 5:7] = 1.0
    network = Generator(4, (1, 12, 12))
    draw = generator(0)
    adam = torch.optim.Adam(network.parameters(), 0.01)
    losses = []
    for _ in range(60):
        loss = (network(network.sample_codes(8, draw)) - wanted).square().mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]
