from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from keyhole.data import load
from keyhole.errors import DoesNotFit
from keyhole.metrics import fft2d, mse, psnr, ssim

ALL = pytest.mark.parametrize("metric", [mse, psnr, ssim, fft2d], ids=lambda m: m.__name__)
SIZES = [(1, 8, 8), (1, 10, 14), (1, 11, 11), (1, 28, 28), (3, 32, 32), (3, 13, 40), (3, 112, 92)]


def pairs(shape: tuple[int, int, int], noise: float) -> tuple[Tensor, Tensor]:
    """Two photos, and the same with noise."""
    draws = torch.Generator().manual_seed(0)
    truth = load("photos", image_size=shape[1:]).images([0, 5])[:, : shape[0]]
    found = truth + noise * torch.randn(truth.shape, generator=draws)
    return found.clamp(0, 1).double(), truth.double()


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_psnr_and_mse_are_those_of_scikit_image(shape: tuple[int, int, int], noise: float) -> None:
    found, truth = pairs(shape, noise)
    for i, (a, b) in enumerate(zip(found.numpy(), truth.numpy(), strict=True)):
        assert psnr(found, truth, data_range=1.0)[i].item() == pytest.approx(
            peak_signal_noise_ratio(b, a, data_range=1.0), abs=1e-4
        )
        assert mse(found, truth, data_range=1.0)[i].item() == pytest.approx(
            mean_squared_error(b, a), abs=1e-12
        )


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_ssim_is_that_of_scikit_image(shape: tuple[int, int, int], noise: float) -> None:
    found, truth = pairs(shape, noise)
    gaussian = min(shape[1:]) >= 11
    options = {"gaussian_weights": True, "sigma": 1.5} if gaussian else {"win_size": 7}
    values = ssim(found, truth, data_range=1.0)
    for i, (a, b) in enumerate(zip(found.numpy(), truth.numpy(), strict=True)):
        expected = structural_similarity(
            b, a, channel_axis=0, data_range=1.0, use_sample_covariance=False, **options
        )
        assert values[i].item() == pytest.approx(expected, abs=1e-4)


def test_ssim_of_unlike_images_can_be_negative() -> None:
    found, truth = pairs((1, 32, 32), 0.0)
    expected = structural_similarity(
        truth[0, 0].numpy(),
        1 - truth[0, 0].numpy(),
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    value = ssim(1 - found, truth, data_range=1.0)[0].item()
    assert value == pytest.approx(expected, abs=1e-4)
    assert value < 0


@pytest.mark.parametrize("brightness", [0.0, 0.5, 1.0])
def test_ssim_of_flat_images_is_that_of_scikit_image(brightness: float) -> None:
    flat = torch.full((1, 1, 16, 16), brightness)
    truth = torch.rand(1, 1, 16, 16)
    expected = structural_similarity(
        truth[0, 0].double().numpy(),
        flat[0, 0].double().numpy(),
        data_range=1.0,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
    )
    assert ssim(flat, truth, data_range=1.0).item() == pytest.approx(expected, abs=1e-4)


def literal_fft2d(found: np.ndarray, truth: np.ndarray) -> float:
    """SPEC 1.2, word for word: FFT of each channel, flatten, no conjugation."""
    U = np.concatenate([np.fft.fft2(channel).ravel() for channel in found])
    V = np.concatenate([np.fft.fft2(channel).ravel() for channel in truth])
    norm = np.sqrt(np.sum(U**2) * np.sum(V**2))
    return float(np.abs(1 - np.sum(U * V) / norm))


@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_fft2d_is_the_papers(shape: tuple[int, int, int], noise: float) -> None:
    found, truth = pairs(shape, noise)
    values = fft2d(found, truth, data_range=1.0)
    for i, (a, b) in enumerate(zip(found.numpy(), truth.numpy(), strict=True)):
        assert values[i].item() == pytest.approx(literal_fft2d(a, b), abs=1e-6)


def test_fft2d_is_not_the_cosine_distance_of_the_pixels() -> None:
    found, truth = pairs((3, 32, 32), 0.3)
    cosine = torch.cosine_similarity(found.flatten(1), truth.flatten(1))
    assert (fft2d(found, truth, data_range=1.0) - (1 - cosine)).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("metric", "best"), [(mse, 0.0), (psnr, float("inf")), (ssim, 1.0), (fft2d, 0.0)]
)
@pytest.mark.parametrize("shape", SIZES, ids=str)
def test_identical_images_score_best(
    metric: Callable[..., Tensor], best: float, shape: tuple[int, int, int]
) -> None:
    _, truth = pairs(shape, 0.0)
    assert metric(truth, truth, data_range=1.0).tolist() == pytest.approx([best] * 2, abs=1e-9)


@ALL
def test_black_images_are_borne(metric: Callable[..., Tensor]) -> None:
    black, (_, truth) = torch.zeros(2, 3, 16, 16), pairs((3, 16, 16), 0.0)
    assert not metric(black, truth, data_range=1.0).isnan().any()
    assert not metric(black, black, data_range=1.0).isnan().any()


@ALL
@given(scale=st.floats(1e-3, 1e3))
def test_the_data_range_is_taken_into_account(metric: Callable[..., Tensor], scale: float) -> None:
    draws = torch.Generator().manual_seed(0)
    found, truth = torch.rand(2, 2, 3, 16, 16, generator=draws, dtype=torch.float64)
    unit = metric(found, truth, data_range=1.0)
    assert torch.allclose(metric(found * scale, truth * scale, data_range=scale), unit, atol=1e-6)


@ALL
def test_the_data_range_must_be_said(metric: Callable[..., Tensor]) -> None:
    parameter = inspect.signature(metric).parameters["data_range"]
    assert parameter.default is inspect.Parameter.empty
    assert parameter.kind is inspect.Parameter.KEYWORD_ONLY


@ALL
@pytest.mark.parametrize("data_range", [0.0, -1.0, float("nan")])
def test_a_data_range_that_is_none_is_refused(
    metric: Callable[..., Tensor], data_range: float
) -> None:
    image = torch.rand(1, 1, 16, 16)
    with pytest.raises(DoesNotFit, match="the data range must be positive"):
        metric(image, image, data_range=data_range)


@ALL
@pytest.mark.parametrize(
    ("one", "other"),
    [((2, 1, 16, 16), (1, 1, 16, 16)), ((1, 1, 16, 16), (1, 3, 16, 16)), ((16, 16), (16, 16))],
)
def test_images_that_cannot_be_compared_are_refused(
    metric: Callable[..., Tensor], one: tuple[int, ...], other: tuple[int, ...]
) -> None:
    with pytest.raises(DoesNotFit, match="cannot compare images of shapes"):
        metric(torch.rand(one), torch.rand(other), data_range=1.0)


def test_ssim_of_very_small_images_is_refused() -> None:
    image = torch.rand(1, 1, 6, 20)
    with pytest.raises(DoesNotFit, match="at least 7 px per side, got 6"):
        ssim(image, image, data_range=1.0)


@ALL
def test_each_image_is_scored_alone(metric: Callable[..., Tensor]) -> None:
    found, truth = pairs((3, 16, 16), 0.2)
    together = metric(found, truth, data_range=1.0)
    alone = [metric(found[i : i + 1], truth[i : i + 1], data_range=1.0) for i in range(2)]
    assert torch.allclose(together, torch.cat(alone))
    assert together.shape == (2,)
    assert together.dtype == torch.float64
