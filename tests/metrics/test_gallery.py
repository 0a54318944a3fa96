from __future__ import annotations

import pytest
import torch

from keyhole.data import load
from keyhole.metrics import reidentify

photos = load("photos", image_size=64)
GALLERY = photos.images(range(50))
EVERYONE = torch.arange(50)


def test_every_image_points_to_itself() -> None:
    assert reidentify(GALLERY, GALLERY, EVERYONE).tolist() == [1.0] * 50


def test_a_wrong_image_points_elsewhere() -> None:
    assert reidentify(GALLERY, GALLERY, EVERYONE.roll(1)).tolist() == [0.0] * 50


@pytest.mark.parametrize(("contrast", "brightness"), [(0.1, 0.0), (0.5, 0.4), (3.0, -1.0)])
def test_brightness_and_contrast_play_no_part(contrast: float, brightness: float) -> None:
    changed = GALLERY * contrast + brightness
    assert reidentify(changed, GALLERY, EVERYONE).all()


def test_noise_on_single_pixels_is_forgiven() -> None:
    noisy = GALLERY + 0.3 * torch.randn(GALLERY.shape)
    assert reidentify(noisy, GALLERY, EVERYONE).mean() > 0.95


def test_pure_noise_points_to_the_right_image_by_chance_only() -> None:
    noise = torch.rand(GALLERY.shape)
    assert reidentify(noise, GALLERY, EVERYONE).mean() < 0.2


@pytest.mark.parametrize("brightness", [0.0, 0.5, 1.0])
def test_a_blank_image_points_to_no_one(brightness: float) -> None:
    blank = torch.full_like(GALLERY[:1], brightness)
    assert reidentify(blank, GALLERY, torch.tensor([0])).tolist() == [0.0]


def test_oblong_images_are_compared_too() -> None:
    gallery = torch.rand(5, 1, 112, 92)
    assert reidentify(gallery[[2, 4]], gallery, torch.tensor([2, 4])).tolist() == [1.0, 1.0]
