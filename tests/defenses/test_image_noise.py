"""Gaussian noise on images."""

from __future__ import annotations

import torch

from keyhole.defenses import ClientSide, ImageNoise
from keyhole.seeds import generator


def test_noise_is_as_strong_as_said_and_grey_levels_stay_whole() -> None:
    images = torch.full((4, 3, 64, 64), 128 / 255)
    noisy = ImageNoise(sigma=20).on_images(images, ClientSide(generator(0))) * 255
    assert torch.allclose(noisy, noisy.round(), atol=1e-3)
    assert abs(float(noisy.std()) - 20) < 0.5
    assert abs(float(noisy.mean()) - 128) < 0.5


def test_pixels_are_clipped() -> None:
    noisy = ImageNoise().on_images(torch.zeros(1, 1, 64, 64), ClientSide(generator(0)))
    assert float(noisy.min()) == 0
    assert abs(float((noisy == 0).double().mean()) - 0.5) < 0.05


def test_every_epoch_has_its_own_noise_and_a_seed_repeats_it() -> None:
    images, side = torch.full((1, 1, 8, 8), 0.5), ClientSide(generator(0))
    one, two = ImageNoise().on_images(images, side), ImageNoise().on_images(images, side)
    assert not torch.equal(one, two)
    assert torch.equal(one, ImageNoise().on_images(images, ClientSide(generator(0))))


def test_a_hundred_versions_average_to_the_image() -> None:
    """Which is why noise made anew for every epoch hides less with every epoch."""
    images, side = torch.full((1, 1, 16, 16), 0.5), ClientSide(generator(0))
    mean = torch.stack([ImageNoise().on_images(images, side) for _ in range(100)]).mean(0)
    assert float((mean - images).abs().mean()) < 0.02
