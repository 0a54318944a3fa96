"""ATS: what the published policies do to an image."""

from __future__ import annotations

import pytest
import torch

from keyhole.data import load
from keyhole.defenses import Ats, ClientSide, Translation
from keyhole.defenses.ats import CHANGES, FILL, STEPS, move
from keyhole.seeds import generator


def test_a_moved_image_leaves_a_grey_gap() -> None:
    image = torch.arange(16.0).view(1, 4, 4) / 16
    right = move(image, 0, 0.25)
    assert torch.equal(right[:, :, 1:], image[:, :, :-1])
    assert torch.equal(right[:, :, 0], torch.full((1, 4), FILL))
    up = move(image, -0.5, 0)
    assert torch.equal(up[:, :2], image[:, 2:])
    assert torch.equal(up[:, 2:], torch.full((1, 2, 4), FILL))
    assert torch.equal(move(image, 0, 0), image)


def test_policies_are_the_published_ones() -> None:
    kinds = [[step.kind for step in steps] for steps in Ats().sequences]
    assert kinds == [["move-x", "contrast", "move-y"], ["move-y", "contrast", "contrast"]]
    assert Ats(policy="none").sequences == []
    assert all(0 < step.chance < 1 for step in STEPS.values())


@pytest.mark.parametrize("policy", ["3-1-7", "43-18-18", "19-15-45", "2-43-21"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_stay_images(policy: str, channels: int) -> None:
    images = torch.rand(20, channels, 16, 16, generator=generator(0))
    changed = Ats(policy=policy).on_images(images, ClientSide(generator(1)))  # type: ignore[arg-type]
    assert changed.shape == images.shape
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= 1
    assert not torch.equal(changed, images)


def test_steps_are_made_as_often_as_the_policy_says() -> None:
    """Of `3-1-7`, only the two moves make a grey border: 1 - .7 * .3 = .79 of all images."""
    images = torch.zeros(2000, 1, 9, 9)
    changed = Ats(policy="3-1-7").on_images(images, ClientSide(generator(0)))
    moved = (changed > 0).flatten(1).any(1).double().mean()
    assert abs(float(moved) - 0.79) < 0.03


def test_each_image_is_changed_in_its_own_way_and_anew_each_time() -> None:
    image = load("digits").images([1]).expand(50, -1, -1, -1)
    client = ClientSide(generator(0))
    once, twice = Ats().on_images(image, client), Ats().on_images(image, client)
    assert len(once.flatten(1).unique(dim=0)) > 5
    assert not torch.equal(once, twice)


def test_solarising_inverts_the_brightest_pixels_alone() -> None:
    image = torch.tensor([[[0.2, 0.95]]])
    for sign in (1, -1):
        changed = CHANGES["solarise"](image, sign * STEPS[45].size)
        torch.testing.assert_close(changed, torch.tensor([[[0.2, 0.05]]]))


def test_what_is_told_is_how_far_images_move() -> None:
    assert Ats().image_change() == Translation(150 / 331, FILL)
    assert Ats(policy="19-15-45").image_change() == Translation(0.0, FILL)
