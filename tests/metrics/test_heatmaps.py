"""Overlays of heat maps, and how alike they are."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import mean_squared_error, peak_signal_noise_ratio, structural_similarity

from keyhole.errors import DoesNotFit
from keyhole.metrics.heatmaps import CAP, jet, overlay_heat_maps, similarity, to_grey


def pictures(seed: int, count: int = 3, side: int = 16) -> torch.Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, side, side), generator=draw).to(torch.uint8)


def test_colours_run_from_blue_over_green_to_red() -> None:
    colours = jet(torch.linspace(0, 1, 9).view(1, 1, 9))[0, :, 0]
    assert colours.argmax(0).tolist()[0] == 2
    assert colours[:, 4].tolist() == [0.5, 1.0, 0.5]
    assert colours.argmax(0).tolist()[-1] == 0
    red, _, blue = colours
    assert torch.equal(red, blue.flip(0))
    assert bool((colours >= 0).all() and (colours <= 1).all())


def test_an_overlay_is_half_image_half_heat() -> None:
    images = torch.zeros(2, 3, 4, 5)
    images[1] = 1.0
    maps = torch.zeros(2, 4, 5)
    maps[:, 0, 0] = 1.0
    found = overlay_heat_maps(images, maps)
    assert found.dtype == torch.uint8
    assert found[0, :, 0, 0].tolist() == [64, 0, 0]
    assert found[0, :, 3, 4].tolist() == [0, 0, 64]
    assert found[1, :, 0, 0].tolist() == [191, 128, 128]
    assert found[1, :, 3, 4].tolist() == [128, 128, 191]


def test_grey_images_are_laid_under_all_colours() -> None:
    image = torch.rand(1, 1, 6, 6)
    maps = torch.rand(1, 6, 6)
    assert torch.equal(
        overlay_heat_maps(image, maps), overlay_heat_maps(image.expand(-1, 3, -1, -1), maps)
    )


@pytest.mark.parametrize(
    ("images", "maps"),
    [((2, 3, 8, 8), (2, 4, 4)), ((2, 3, 8, 8), (1, 8, 8)), ((2, 2, 8, 8), (2, 8, 8))],
)
def test_maps_of_other_images_are_refused(images: tuple[int, ...], maps: tuple[int, ...]) -> None:
    with pytest.raises(DoesNotFit, match="do not fit images"):
        overlay_heat_maps(torch.rand(images), torch.rand(maps))


def test_the_measures_are_those_of_scikit_image_on_0_to_255() -> None:
    clean, other = pictures(0), pictures(1)
    other[1] = (clean[1].int() + 3).clamp(max=255).to(torch.uint8)
    found = similarity(clean, other)
    for i in range(len(clean)):
        a, b = clean[i].numpy(), other[i].numpy()
        assert float(found["mse"][i]) == pytest.approx(mean_squared_error(a, b))
        assert float(found["psnr"][i]) == pytest.approx(
            peak_signal_noise_ratio(a, b, data_range=255)
        )
        expected = structural_similarity(
            *(a.astype(float), b.astype(float)),
            data_range=255,
            channel_axis=0,
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
        )
        assert float(found["ssim"][i]) == pytest.approx(expected, abs=1e-6)


def test_equal_pictures_have_the_cap_and_no_others_reach_it() -> None:
    clean = pictures(0, count=1, side=226)
    assert float(similarity(clean, clean)["psnr"]) == CAP
    other = clean.clone()
    other[0, 0, 0, 0] = other[0, 0, 0, 0] ^ 1
    found = similarity(clean, other)
    assert float(found["psnr"]) < CAP
    assert float(found["mse"]) == pytest.approx(1 / (3 * 226 * 226))


@given(shift=st.floats(0.001, 1.0))
def test_bare_maps_are_measured_as_grey_pictures(shift: float) -> None:
    low, high = torch.zeros(1, 8, 8), torch.full((1, 8, 8), shift)
    found = similarity(to_grey(low), to_grey(high))
    assert float(found["mse"]) == pytest.approx((255 * shift) ** 2, rel=1e-5)
    assert float(found["psnr"]) == pytest.approx(-20 * math.log10(shift), abs=1e-4)
