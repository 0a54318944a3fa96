from __future__ import annotations

import torch

from keyhole.data import load
from keyhole.metrics import mean_images, mse, nearest_public_images, noise_images
from keyhole.seeds import generator

digits = load("digits")


def test_the_mean_image_is_the_best_constant_guess() -> None:
    public = digits.images(range(100))
    guess = mean_images(public, 100)
    assert guess.shape == public.shape
    assert torch.allclose(guess[0], public.mean(0))
    total = mse(guess, public, data_range=1.0).sum()
    for other in (guess + 0.01, guess - 0.01, public[:1].expand_as(public)):
        assert mse(other, public, data_range=1.0).sum() > total


def test_noise_fills_the_range_by_its_generator() -> None:
    one, same, other = (noise_images((1, 20, 20), 5, generator(s)) for s in (1, 1, 2))
    assert one.shape == (5, 1, 20, 20)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert 0 <= one.min() < 0.05 < 0.95 < one.max() <= 1
    assert abs(one.mean() - 0.5) < 0.02


def test_the_nearest_public_image_is_found_for_each() -> None:
    public = digits.images(range(50))
    truth = public[[7, 3, 3]] * 0.5 + 0.01 * torch.randn(3, 1, 8, 8)
    assert torch.equal(nearest_public_images(public, truth), public[[7, 3, 3]])


def test_the_nearest_public_image_is_a_lucky_guess() -> None:
    public, truth = digits.images(range(500)), digits.images(range(600, 620))
    lucky = mse(nearest_public_images(public, truth), truth, data_range=1.0).mean()
    blind = mse(mean_images(public, 20), truth, data_range=1.0).mean()
    assert lucky < blind
