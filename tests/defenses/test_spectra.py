"""Which frequencies are high, and that noise lies in these and in no others."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from keyhole.defenses.spectra import filter_bins, find_high_bins, noise_energy

SIDES = st.integers(1, 7)


@pytest.mark.parametrize(
    ("side", "kept", "printed"), [(1, 0, 1), (3, 8, 9), (5, 24, 25), (7, 48, 49), (11, 120, 121)]
)
def test_the_papers_radius_spares_the_mean_or_nothing(side: int, kept: int, printed: int) -> None:
    assert int(find_high_bins(side, side, 0.5).sum()) == kept
    assert int(find_high_bins(side, side, 0.5, "printed").sum()) == printed


def test_a_larger_radius_leaves_the_corners() -> None:
    corners = torch.fft.fftshift(find_high_bins(3, 3, 1.2))
    assert corners.int().tolist() == [[1, 0, 1], [0, 0, 0], [1, 0, 1]]


@given(height=SIDES, width=SIDES, radius=st.floats(0, 6))
def test_bins_are_as_far_from_the_mean_as_they_are_high(
    height: int, width: int, radius: float
) -> None:
    bins = find_high_bins(height, width, radius)
    rows = torch.fft.fftfreq(height, 1 / height, dtype=torch.double)
    columns = torch.fft.fftfreq(width, 1 / width, dtype=torch.double)
    far = rows[:, None] ** 2 + columns**2 >= radius**2
    assert torch.equal(bins, far)
    assert noise_energy(bins) == int(bins.sum())


@pytest.mark.parametrize("reading", ["dc-kept", "printed"])
@pytest.mark.parametrize("size", [(3, 3), (2, 2), (4, 4), (5, 3), (1, 7)])
@pytest.mark.parametrize("radius", [0.5, 1.2, 2.0])
def test_every_weight_and_every_bin_has_its_variance(
    reading: str, size: tuple[int, int], radius: float
) -> None:
    draws, pixels = 40_000, math.prod(size)
    bins = find_high_bins(*size, radius, reading)
    draw = torch.Generator().manual_seed(0)
    noise = filter_bins(torch.randn(draws, *size, generator=draw, dtype=torch.double), bins)
    error = 6 * math.sqrt(2 / draws)
    energy = noise_energy(bins)
    assert (
        noise.square()
        .mean(0)
        .allclose(torch.full(size, energy / pixels, dtype=torch.double), rtol=error, atol=1e-12)
    )
    transfer = (bins.double() + bins.double().flip(0, 1).roll((1, 1), (0, 1))) / 2
    power = torch.fft.fft2(noise).abs().square().mean(0)
    assert power.allclose(pixels * transfer.square(), rtol=error, atol=1e-12)
    assert noise.mean(0).abs().max() <= 6 * math.sqrt(energy / pixels / draws) + 1e-12


def test_high_noise_does_not_move_a_slices_sum() -> None:
    draw = torch.Generator().manual_seed(0)
    noise = filter_bins(torch.randn(100, 8, 3, 3, generator=draw), find_high_bins(3, 3, 0.5))
    assert noise.dtype == torch.float
    assert noise.sum((-2, -1)).abs().max() < 1e-5
    assert noise.abs().mean() > 0.5


@pytest.mark.parametrize("size", [(3, 3), (7, 7), (4, 6)], ids=str)
def test_the_high_part_is_the_masked_spectrums(size: tuple[int, int]) -> None:
    bins, kernels = find_high_bins(*size, 1.2), torch.randn(5, 2, *size, dtype=torch.double)
    spectrum = torch.fft.fft2(kernels) * bins
    torch.testing.assert_close(filter_bins(kernels, bins), torch.fft.ifft2(spectrum).real)
