"""Images that a policy of augmentations changed: the way is found, and reversed."""

from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.reversal import find_gap, find_steps, reverse_steps
from keyhole.attacks.jigsaw.undo import undo
from keyhole.data import load
from keyhole.defenses import Ats, ChosenSteps
from keyhole.defenses.image_steps import MOVING, ImageStep, apply_steps
from keyhole.seeds import generator

WAYS = Ats().image_change().ways


@pytest.fixture(scope="module")
def photos() -> torch.Tensor:
    return load("photos", image_size=32).images(range(8))


def moves(way: tuple[ImageStep, ...]) -> list[ImageStep]:
    return [step for step in way if step.kind in MOVING]


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("policy", ["3-1-7+43-18-18", "2-43-21"])
def test_how_an_image_was_moved_is_found(photos: torch.Tensor, policy: str, noise: float) -> None:
    ways = Ats(policy=policy).image_change().ways  # type: ignore[arg-type]
    right = total = 0
    for way in ways:
        for image in photos:
            seen = apply_steps(image, way)
            seen = (seen + noise * torch.randn(seen.shape, generator=generator(0))).clamp(0, 1)
            right += moves(find_steps(seen, ways)) == moves(way)
            total += 1
    assert right >= 0.9 * total


@pytest.mark.parametrize("way", WAYS, ids=lambda way: ",".join(f"{s.size:.2f}" for s in way))
def test_what_stayed_in_the_image_comes_back(
    photos: torch.Tensor, way: tuple[ImageStep, ...]
) -> None:
    """Up to tones that a stronger contrast drove beyond black or white."""
    seen = torch.stack([apply_steps(image, way) for image in photos])
    back = undo(ChosenSteps((way,)), [seen]).images
    lost = reverse_steps(find_gap(photos[0], way)[None].float(), moves(way))[0] != 0
    lost |= find_gap(photos[0], tuple(ImageStep(s.kind, -s.size) for s in moves(way)))
    errors = (back - photos)[..., ~lost].abs().flatten(1).mean(1)
    assert float(errors.median()) < 0.08
    plain = (seen - photos)[..., ~lost].abs().flatten(1).mean(1)
    assert float(errors.median()) < 0.5 * float(plain.median())


def test_colours_are_left_where_pixels_were_not_read_exactly(photos: torch.Tensor) -> None:
    way = (ImageStep("contrast", -0.5), ImageStep("move-x", 0.25))
    seen = torch.stack([apply_steps(image, way) for image in photos])
    moved = undo(ChosenSteps((way,)), [seen], exact=False).images
    assert torch.equal(moved[..., :24], seen[..., 8:])
    exact = undo(ChosenSteps((way,)), [seen]).images
    assert float((exact - photos)[..., :24].abs().mean()) < 0.05


def test_a_way_without_a_gap_leaves_the_image(photos: torch.Tensor) -> None:
    change = Ats(policy="19-15-45").image_change()
    assert torch.equal(undo(change, [photos]).images, photos)
    assert torch.equal(undo(ChosenSteps(()), [photos]).images, photos)


def test_an_image_of_one_tone_says_nothing() -> None:
    flat = torch.full((1, 32, 32), 0.4)
    assert find_steps(flat, WAYS) == ()
