"""Thresholds at quantiles, and what lies between two of them."""

from __future__ import annotations

import pytest
import torch

from keyhole.attacks.malicious.ladder import read_bins, read_noisy_bins, spread_quantiles


def test_quantiles_are_those_of_the_distribution_the_values_are_from():
    drawn = torch.randn(2000, generator=torch.Generator().manual_seed(0))
    shares = torch.tensor([0.1, 0.5, 0.9])
    found = spread_quantiles(drawn, shares)
    assert torch.allclose(found, torch.special.ndtri(shares), atol=0.1)


def test_equal_values_still_give_rising_quantiles():
    found = spread_quantiles(torch.full((5,), 2.0), torch.linspace(0.01, 0.99, 50))
    assert bool((found.diff() > 0).all())
    assert torch.allclose(found.mean(), torch.tensor(2.0), atol=1e-3)


def cumulative_gradient(images: torch.Tensor, slopes: torch.Tensor, bins: list[int], rows: int):
    """What a ladder's gradient is when image n fires the rows up to ``bins[n]``."""
    fires = torch.arange(rows)[:, None] <= torch.tensor(bins)[None, :]
    return (fires * slopes) @ images, (fires * slopes).sum(1)


def test_images_come_out_of_the_differences_of_rows():
    images, slopes = torch.randn(3, 7), torch.tensor([0.5, -2.0, 1.0])
    weight, bias = cumulative_gradient(images, slopes, [0, 4, 9], rows=10)
    found = read_bins(weight, bias, cumulative=True, most=8)
    assert found.rows.tolist() == [4, 9, 0]
    assert torch.allclose(found.images.float(), images[[1, 2, 0]], atol=1e-5)


def test_images_of_one_bin_are_read_as_their_weighted_mean():
    images, slopes = torch.randn(2, 7), torch.tensor([1.0, 3.0])
    weight, bias = cumulative_gradient(images, slopes, [2, 2], rows=4)
    found = read_bins(weight, bias, cumulative=True, most=8)
    assert found.rows.tolist() == [2]
    assert torch.allclose(found.images[0].float(), (images[0] + 3 * images[1]) / 4, atol=1e-5)


def test_only_the_fullest_bins_are_read_where_most_is_less():
    weight, bias = torch.zeros(6, 3), torch.tensor([0.0, 0.001, 0.0, 1.0, 0.0, -0.002])
    assert read_bins(weight, bias, cumulative=False, most=6).rows.tolist() == [3, 5, 1]
    assert read_bins(weight, bias, cumulative=False, most=2).rows.tolist() == [3, 5]


def test_bins_that_hold_only_noise_are_left_out():
    weight, bias = torch.zeros(6, 3), torch.tensor([0.0, 0.001, 0.0, 1.0, 0.0, -0.002])
    found, left = read_noisy_bins(weight, bias, cumulative=False, most=6, noise=0.01)
    assert found.rows.tolist() == [3]
    assert left.tolist() == pytest.approx([0.0001])


@pytest.mark.parametrize("bins", [[10, 60, 80], [10, 60, 99]])
def test_rows_between_two_images_are_averaged_against_noise(bins):
    """The last of the images may fire every row."""
    images, slopes = torch.randn(3, 40), torch.tensor([1.0, -2.0, 1.5])
    weight, bias = cumulative_gradient(images, slopes, bins, rows=100)
    sigma = 0.3
    noisy = weight + sigma * torch.randn(weight.shape), bias + sigma * torch.randn(bias.shape)
    found, left = read_noisy_bins(*noisy, cumulative=True, most=3, noise=sigma)
    assert found.rows.tolist() == bins
    error = (found.weight - slopes[:, None] * images).square().mean(1)
    assert torch.allclose(error, left, rtol=0.6)
    assert float(left.max()) < sigma**2 / 4


def test_noise_alone_fills_no_bin():
    for seed in range(20):
        noise = torch.randn(64, 21, generator=torch.Generator().manual_seed(seed))
        found, _ = read_noisy_bins(noise[:, 1:], noise[:, 0], cumulative=True, most=8, noise=1.0)
        assert len(found.rows) == 0
