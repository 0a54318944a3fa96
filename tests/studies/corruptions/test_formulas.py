"""Each corruption against a reference, or against what its formula promises."""

from __future__ import annotations

import io
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from scipy import ndimage
from skimage import color, data, measure
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms.v2 import functional as tvf

from keyhole_studies.corruptions import blur, digital, fields, noise, weather


@pytest.fixture
def draws() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="module")
def photo() -> Tensor:
    """The astronaut's face, ``[1, 3, 40, 48]``."""
    whole = torch.from_numpy(data.astronaut()[:240, 100:388]).permute(2, 0, 1)[None] / 255
    return F.interpolate(whole, (40, 48), mode="area")


GREY = torch.full((1, 1, 300, 300), 0.4)


def test_gaussian_noise_has_its_spread(draws: torch.Generator) -> None:
    error = noise.gaussian(GREY, 0.1, draws) - GREY
    assert float(error.mean()) == pytest.approx(0, abs=0.002)
    assert float(error.std()) == pytest.approx(0.1, rel=0.02)


def test_shot_noise_counts_photons(draws: torch.Generator) -> None:
    found = noise.shot(GREY, 50, draws)
    torch.testing.assert_close(found * 50, (found * 50).round())
    assert float(found.mean()) == pytest.approx(0.4, rel=0.01)
    assert float(found.var()) == pytest.approx(0.4 / 50, rel=0.03)


def test_impulses_are_black_and_white_in_equal_shares(draws: torch.Generator) -> None:
    found = noise.impulse(GREY, 0.2, draws)
    assert float((found == 0).float().mean()) == pytest.approx(0.1, abs=0.005)
    assert float((found == 1).float().mean()) == pytest.approx(0.1, abs=0.005)
    assert float((found == GREY).float().mean()) == pytest.approx(0.8, abs=0.005)


def test_speckle_grows_with_brightness(draws: torch.Generator) -> None:
    spreads = [float(noise.speckle(GREY * k, 0.2, draws).std()) for k in (1, 2)]
    assert spreads == pytest.approx([0.08, 0.16], rel=0.02)


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.0])
def test_gaussian_blur_is_scipys(photo: Tensor, sigma: float, draws: torch.Generator) -> None:
    radius = math.ceil(4 * sigma)
    expected = ndimage.gaussian_filter(
        photo.numpy(), sigma, axes=(2, 3), mode="mirror", radius=radius
    )
    np.testing.assert_allclose(blur.gaussian(photo, sigma, draws).numpy(), expected, atol=1e-5)


def test_each_image_is_convolved_with_its_own_kernel(photo: Tensor) -> None:
    images = torch.cat([photo, photo.flip(-1)])
    kernels = torch.rand(2, 5, 5)
    found = blur.convolve(images, kernels)
    for image, kernel, mine in zip(images, kernels / kernels.sum((1, 2), True), found, strict=True):
        for channel, blurred in zip(image, mine, strict=True):
            expected = ndimage.convolve(channel.numpy(), kernel.numpy(), mode="mirror")
            np.testing.assert_allclose(blurred.numpy(), expected, atol=1e-5)


def test_a_kernel_larger_than_the_image_is_cut() -> None:
    images, kernels = torch.rand(1, 1, 4, 9), torch.ones(1, 21, 21)
    torch.testing.assert_close(
        blur.convolve(images, kernels), blur.convolve(images, kernels[:, 7:-7, 7:-7])
    )


@pytest.mark.parametrize("radius", [2.0, 5.5])
def test_defocus_spreads_a_point_over_a_disk(radius: float, draws: torch.Generator) -> None:
    point = torch.zeros(1, 1, 41, 41)
    point[..., 20, 20] = 1
    spread = blur.defocus(point, radius, draws)[0, 0]
    y, x = np.mgrid[-20:21, -20:21]
    assert float(spread[np.hypot(x, y) > radius + 0.6].abs().max()) < 1e-6
    inside = spread[np.hypot(x, y) < radius - 0.6]
    assert float(inside.min()) == pytest.approx(1 / (math.pi * radius**2), rel=0.1)
    assert float(inside.std()) < 1e-6


@pytest.mark.parametrize(("angle", "axis"), [(0.0, 1), (math.pi / 2, 0)])
def test_motion_runs_along_its_angle(angle: float, axis: int) -> None:
    kernel = blur.line(torch.tensor([angle]), 5.0, torch.zeros(1))[0]
    middle = len(kernel) // 2
    strand = kernel.select(1 - axis, middle)
    assert strand.tolist() == pytest.approx([0] + [1] * 5 + [0], abs=1e-5)
    assert float(kernel.sum()) == pytest.approx(5, abs=1e-4)


def test_motion_blurs_across_edges_and_not_along_them() -> None:
    stripes = (torch.arange(32) // 4 % 2).float().expand(1, 1, 32, 32)
    across, along = (
        blur.convolve(stripes, blur.line(torch.tensor([a]), 8.0, stripes))
        for a in (0.0, math.pi / 2)
    )
    assert float(across[..., 8:-8].std()) < 0.1 * float(stripes.std())
    torch.testing.assert_close(along, stripes, atol=1e-5, rtol=0)


def test_zoom_leaves_the_centre_and_blurs_the_rim(draws: torch.Generator) -> None:
    block = (torch.arange(65) + 2) // 4
    checks = ((block[:, None] + block) % 2).float()
    moved = (blur.zoom(checks[None, None], 0.3, draws)[0, 0] - checks).abs()
    assert float(moved[31:34, 31:34].mean()) < 0.05
    assert float(moved[:8].mean()) > 0.3


def test_fog_lies_between_the_image_and_its_own_light(
    photo: Tensor, draws: torch.Generator
) -> None:
    dim = 0.8 * photo
    share = (weather.fog(dim, 1.0, draws) - dim) / (weather.AIRLIGHT - dim)
    assert float(share.min()) > 1 - math.exp(-0.5) - 1e-4
    assert float(share.max()) < 1 - math.exp(-1.5) + 1e-4
    torch.testing.assert_close(share[:, 0], share[:, 1], atol=1e-3, rtol=0)


def test_ice_hides_colour(photo: Tensor, draws: torch.Generator) -> None:
    found = weather.frost(photo, 0.9, draws)
    before, after = (float(x.std(1).mean()) for x in (photo, found))
    assert after < 0.8 * before
    assert float(found.mean()) > float(photo.mean())


def test_snow_only_whitens(photo: Tensor, draws: torch.Generator) -> None:
    found = weather.snow(photo, 0.3, draws)
    assert (found >= photo - 1e-6).all()
    flakes = float((found.amin(1) > 0.97).float().mean())
    assert 0.01 < flakes < 0.3


@pytest.mark.parametrize("amount", [0.1, 0.4])
def test_brightness_is_scikit_images_hsv(
    photo: Tensor, amount: float, draws: torch.Generator
) -> None:
    hsv = color.rgb2hsv(photo[0].permute(1, 2, 0).numpy())
    hsv[..., 2] = np.clip(hsv[..., 2] + amount, 0, 1)
    found = weather.brightness(photo, amount, draws)[0].permute(1, 2, 0).numpy()
    np.testing.assert_allclose(found, color.hsv2rgb(hsv), atol=1e-5)


def test_black_is_brightened_to_grey(draws: torch.Generator) -> None:
    assert weather.brightness(torch.zeros(1, 3, 1, 1), 0.3, draws).flatten().tolist() == (
        pytest.approx([0.3] * 3)
    )


def test_contrast_keeps_the_mean_and_shrinks_the_spread(
    photo: Tensor, draws: torch.Generator
) -> None:
    found = weather.contrast(photo, 0.3, draws)
    torch.testing.assert_close(found.mean((2, 3)), photo.mean((2, 3)))
    torch.testing.assert_close(found.std((2, 3)), 0.3 * photo.std((2, 3)))


def test_pixelate_is_scikit_images_block_mean(photo: Tensor, draws: torch.Generator) -> None:
    blocks = measure.block_reduce(photo.numpy(), (1, 1, 4, 4), np.mean)
    expected = blocks.repeat(4, axis=2).repeat(4, axis=3)
    np.testing.assert_allclose(digital.pixelate(photo, 0.25, draws).numpy(), expected, atol=1e-5)


@pytest.mark.parametrize(("cells", "pixels"), [(3, 7), (7, 3), (5, 5), (1, 4)])
def test_cells_and_pixels_share_a_line_without_loss(cells: int, pixels: int) -> None:
    share = digital.overlaps(cells, pixels)
    torch.testing.assert_close(share.sum(1), torch.ones(cells))
    torch.testing.assert_close(share.sum(0), torch.full((pixels,), cells / pixels))


@pytest.mark.parametrize("grey", [True, False])
def test_jpeg_is_pillows(photo: Tensor, grey: bool, draws: torch.Generator) -> None:
    image = photo[:, :1] if grey else photo
    encoded = (image[0].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8).squeeze()
    file = io.BytesIO()
    Image.fromarray(encoded).save(file, "JPEG", quality=20)
    expected = np.asarray(Image.open(file)) / 255
    found = digital.jpeg(image, 20.3, draws)[0].permute(1, 2, 0).squeeze().numpy()
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_elastic_moves_pixels_by_its_field(photo: Tensor) -> None:
    height, width = photo.shape[-2:]
    sigma = digital.WAVE * min(height, width)
    same = torch.Generator().manual_seed(3)
    across, down = (fields.smooth(1, (height, width), same, sigma=sigma)[0] for _ in range(2))
    y, x = np.mgrid[:height, :width]
    places = [y + 1.5 * down.numpy(), x + 1.5 * across.numpy()]
    found = digital.elastic(photo, 1.5, torch.Generator().manual_seed(3))[0]
    for channel, moved in zip(photo[0], found, strict=True):
        expected = ndimage.map_coordinates(channel.numpy(), places, order=1, mode="reflect")
        np.testing.assert_allclose(moved.numpy(), expected, atol=1e-4)


def test_saturate_is_torchvisions(photo: Tensor, draws: torch.Generator) -> None:
    expected = tvf.adjust_saturation(photo, 2.5)
    found = digital.saturate(photo, 2.5, draws).clamp(0, 1)
    assert float((found - expected).abs().max()) < 0.002  # its luma weights have four digits


@pytest.mark.parametrize("size", [(32, 32), (33, 48)], ids=str)
def test_fields_have_mean_zero_and_unit_variance(size: tuple[int, int]) -> None:
    draws = torch.Generator().manual_seed(0)
    for field in (fields.clouds(3, size, draws), fields.smooth(3, size, draws, sigma=2.0)):
        assert field.shape == (3, *size)
        torch.testing.assert_close(field.mean((1, 2)), torch.zeros(3), atol=1e-5, rtol=0)
        torch.testing.assert_close(field.var((1, 2), correction=0), torch.ones(3))


def test_a_smooth_field_is_white_noise_under_a_gaussian_window() -> None:
    white = torch.randn(1, 40, 40, generator=torch.Generator().manual_seed(5))
    window = ndimage.gaussian_filter(white[0].double().numpy(), 2.0, mode="wrap", truncate=8)
    expected = (window - window.mean()) / window.std()
    found = fields.smooth(1, (40, 40), torch.Generator().manual_seed(5), sigma=2.0)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-3)


def test_clouds_are_alike_at_every_scale() -> None:
    """Their power falls by the same factor from each octave to the next."""
    power = (
        torch.fft.rfft2(fields.clouds(64, (64, 64), torch.Generator().manual_seed(0)))
        .abs()
        .square()
        .mean(0)
    )
    along = [float(power[0, k]) for k in (2, 4, 8, 16)]
    ratios = [a / b for a, b in pairwise(along)]
    assert ratios == pytest.approx([4**1.8] * 3, rel=0.5)
