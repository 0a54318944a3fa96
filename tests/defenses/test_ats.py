"""ATS: what the published policies do to an image, as the authors' code does it with PIL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from keyhole.data import load
from keyhole.defenses import Ats, ClientSide
from keyhole.defenses.ats import ONE_WAY, STEPS
from keyhole.defenses.image_steps import GREY, ImageStep, apply_steps, move
from keyhole.seeds import generator

photos = load("photos", image_size=32)


def to_pil(image: torch.Tensor) -> Image.Image:
    return Image.fromarray((image.permute(1, 2, 0) * 255).round().byte().numpy())


def change_by_pil(image: Image.Image, step: ImageStep) -> Image.Image:
    """The same change by PIL, with black behind moves and grey behind rotations."""
    factor, (width, height) = 1 + step.size, image.size
    if step.kind == "rotate":
        turned = image.convert("RGBA").rotate(step.size)
        back = Image.new("RGBA", turned.size, (128,) * 4)
        return Image.composite(turned, back, turned).convert("RGB")
    if step.kind == "solarise":
        return ImageOps.solarize(image, step.size * 255)
    if step.kind.startswith("move"):
        across = -step.size * width if step.kind == "move-x" else 0
        down = -step.size * height if step.kind == "move-y" else 0
        matrix = (1, 0, across, 0, 1, down)
        return image.transform(image.size, Image.Transform.AFFINE, matrix, fillcolor=(0, 0, 0))
    enhance = {
        "contrast": ImageEnhance.Contrast,
        "brightness": ImageEnhance.Brightness,
        "sharpness": ImageEnhance.Sharpness,
    }
    return enhance[step.kind](image).enhance(factor)


@pytest.mark.parametrize("direction", [1, -1])
@pytest.mark.parametrize("number", STEPS)
def test_a_change_is_that_of_pil(number: int, direction: int) -> None:
    step = STEPS[number]
    if step.kind not in ONE_WAY:
        step = ImageStep(step.kind, direction * step.size)
    for place in range(4):
        image = (photos.images([place])[0] * 255).round() / 255
        expected = torch.from_numpy(np.array(change_by_pil(to_pil(image), step))).permute(2, 0, 1)
        distance = (step.apply(image) * 255 - expected.float()).abs()
        assert float(distance.max()) <= 2, step


def test_a_moved_image_leaves_a_black_gap() -> None:
    image = torch.arange(1.0, 17).view(1, 4, 4) / 16
    right = move(image, 0, 0.25)
    assert torch.equal(right[:, :, 1:], image[:, :, :-1])
    assert torch.equal(right[:, :, 0], torch.zeros(1, 4))
    up = move(image, -0.5, 0)
    assert torch.equal(up[:, :2], image[:, 2:])
    assert torch.equal(up[:, 2:], torch.zeros(1, 2, 4))
    assert torch.equal(move(image, 0, 0), image)
    turned = ImageStep("rotate", 20).apply(torch.ones(1, 16, 16))
    assert set(turned.unique().tolist()) == {torch.tensor(GREY).item(), 1.0}


def test_policies_are_the_published_ones() -> None:
    kinds = [[step.kind for step in steps] for steps in Ats().sequences]
    assert kinds == [["move-x", "contrast", "move-y"], ["move-y", "contrast", "contrast"]]
    assert Ats(policy="none").sequences == []
    assert [round(step.size * 32) for step in Ats().sequences[0] if "move" in step.kind] == [15, 3]


@pytest.mark.parametrize("policy", ["3-1-7", "43-18-18", "19-15-45", "2-43-21"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_stay_images(policy: str, channels: int) -> None:
    images = torch.rand(20, channels, 16, 16, generator=generator(0))
    changed = Ats(policy=policy).on_images(images, ClientSide(generator(1)))  # type: ignore[arg-type]
    assert changed.shape == images.shape
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= 1
    assert all(not torch.equal(one, two) for one, two in zip(changed, images, strict=True))


def test_every_alternative_and_direction_is_drawn_as_often() -> None:
    """The dark border of a white image shows where it was moved to.

    Each alternative is drawn for half of the images. The first moves to 4 places, the second to 2.
    """
    images = torch.ones(3000, 1, 16, 16)
    changed = Ats().on_images(images, ClientSide(generator(0)))
    kept = (changed > 0.7).flatten(1)
    gaps, counts = kept.unique(dim=0, return_counts=True)
    shares = sorted((counts / len(images)).tolist())
    assert len(gaps) == 6
    assert shares == pytest.approx([1 / 8] * 4 + [1 / 4] * 2, abs=0.03)


def test_each_image_is_changed_in_its_own_way_and_anew_each_time() -> None:
    image = load("digits").images([1]).expand(50, -1, -1, -1)
    client = ClientSide(generator(0))
    once, twice = Ats().on_images(image, client), Ats().on_images(image, client)
    assert len(once.flatten(1).unique(dim=0)) > 5
    assert not torch.equal(once, twice)
    assert Ats().on_images(image[:0], client).shape == (0, *image.shape[1:])


@pytest.mark.parametrize("policy", ["3-1-7+43-18-18", "19-15-45", "2-43-21"])
def test_what_is_told_holds_every_way_that_can_be_drawn(policy: str) -> None:
    defense = Ats(policy=policy)  # type: ignore[arg-type]
    image = photos.images([0])[0]
    possible = [apply_steps(image, way) for way in defense.image_change().ways]
    for seed in range(20):
        (drawn,) = defense.on_images(image[None], ClientSide(generator(seed)))
        assert any(torch.equal(drawn, each) for each in possible)
