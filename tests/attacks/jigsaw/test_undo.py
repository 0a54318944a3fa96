"""What an attacker makes of images whose defense he knows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from keyhole.attacks.jigsaw.learned import solve_with_network
from keyhole.attacks.jigsaw.regions import solve
from keyhole.attacks.jigsaw.undo import (
    RestoredImages,
    estimate_noise,
    match_images,
    remove_noise,
    undo,
    unshuffle_blocks,
)
from keyhole.data import load
from keyhole.defenses import DEFENSES, ClientSide, Csvar, ImageChange, ImageNoise
from keyhole.metrics import psnr, ssim
from keyhole.seeds import generator


@pytest.fixture(scope="module")
def photos() -> torch.Tensor:
    return load("photos", image_size=64).images([0, 1])


def test_every_declared_change_of_images_can_be_undone() -> None:
    declared = {d.name: d().image_change() for d in DEFENSES}
    changes = {name: change for name, change in declared.items() if change is not None}
    assert set(changes) >= {name for name in DEFENSES.names() if DEFENSES[name].images_travel}
    plain = undo.dispatch(ImageChange)
    assert all(undo.dispatch(type(change)) is not plain for change in changes.values())


class Mirrored(ImageChange):
    """A stranger's change of images."""


def test_a_change_that_no_solver_undoes_is_shown_until_one_is_registered(
    photos: torch.Tensor,
) -> None:
    found = undo(Mirrored(), [photos])
    assert torch.equal(found.images, photos)
    assert found.note == "not undone: no solver is registered for Mirrored"

    @undo.register
    def mirror_back(
        change: Mirrored, versions: Sequence[torch.Tensor], *, exact: bool = True
    ) -> RestoredImages:
        return RestoredImages(versions[-1].flip(-1))

    assert torch.equal(undo(Mirrored(), [photos.flip(-1)]).images, photos)


def test_the_noise_in_an_image_is_measured(photos: torch.Tensor) -> None:
    flat = torch.full((3, 64, 64), 0.5)
    noise = torch.randn(flat.shape, generator=generator(0))
    for sigma in (0.02, 0.1, 0.2):
        assert estimate_noise(flat + sigma * noise) == pytest.approx(sigma, rel=0.05)
    assert estimate_noise(flat) == 0
    assert estimate_noise(photos[0]) < 0.05


def test_denoising_helps_and_never_needs_the_truth(photos: torch.Tensor) -> None:
    defense, side = ImageNoise(), ClientSide(generator(0))
    versions = [defense.on_images(photos, side) for _ in range(4)]
    noisy = psnr(versions[-1], photos, data_range=1.0).mean()
    one = psnr(
        remove_noise(defense.image_change(), versions[-1:]).images, photos, data_range=1.0
    ).mean()
    four = psnr(
        remove_noise(defense.image_change(), versions).images, photos, data_range=1.0
    ).mean()
    assert noisy + 4 < one
    assert one + 2 < four


def test_versions_in_another_order_are_matched(photos: torch.Tensor) -> None:
    defense, side = ImageNoise(), ClientSide(generator(0))
    one, two = (defense.on_images(photos, side) for _ in range(2))
    straight = remove_noise(defense.image_change(), [one, two]).images
    assert torch.equal(remove_noise(defense.image_change(), [one.flip(0), two]).images, straight)
    shuffle = Csvar()
    one, two = (shuffle.on_images(photos, side) for _ in range(2))
    straight = unshuffle_blocks(shuffle.image_change(), [one, two]).images
    assert torch.equal(
        unshuffle_blocks(shuffle.image_change(), [one.flip(0), two]).images, straight
    )


def test_nearest_pairs() -> None:
    things = torch.tensor([[0.0], [5.0], [9.0]])
    assert match_images(things, torch.tensor([[8.0], [1.0], [4.0]])).tolist() == [2, 0, 1]


def test_a_shuffled_image_is_put_together_again(photos: torch.Tensor) -> None:
    hidden = Csvar().on_images(photos, ClientSide(generator(0)))
    found = unshuffle_blocks(Csvar().image_change(), [hidden])
    before = ssim(hidden, photos, data_range=1.0)
    assert bool((ssim(found.images, photos, data_range=1.0) > before + 0.2).all())
    assert found.confidence is not None
    assert bool((found.confidence > 0.4).all())
    assert found.note == ""


def test_small_images_are_put_together_by_what_was_learnt_of_others() -> None:
    digits = load("digits", image_size=28).images(range(12))
    hidden = Csvar().on_images(digits, ClientSide(generator(0)))
    found = unshuffle_blocks(Csvar().image_change(), [hidden])
    assert torch.equal(found.confidence, solve_with_network(hidden).confidence)
    assert torch.equal(found.images, unshuffle_blocks(Csvar().image_change(), [hidden]).images)
    alone = ssim(solve(hidden).images, digits, data_range=1.0).mean()
    assert ssim(found.images, digits, data_range=1.0).mean() > alone


def test_large_images_are_put_together_by_their_seams() -> None:
    large = load("photos", image_size=72).images([0])
    hidden = Csvar().on_images(large, ClientSide(generator(0)))
    assert torch.equal(
        unshuffle_blocks(Csvar().image_change(), [hidden]).images, solve(hidden).images
    )


def test_exact_versions_add_nothing(photos: torch.Tensor) -> None:
    """All hold the same blocks, in orders that tell nothing of the original."""
    side = ClientSide(generator(0))
    versions = [Csvar().on_images(photos, side) for _ in range(3)]
    alone = unshuffle_blocks(Csvar().image_change(), versions[-1:]).images
    assert torch.equal(unshuffle_blocks(Csvar().image_change(), versions).images, alone)


def test_what_cannot_be_undone_is_shown_as_it_is(photos: torch.Tensor) -> None:
    mixed = unshuffle_blocks(Csvar(channels="mixed").image_change(), [photos])
    assert torch.equal(mixed.images, photos)
    assert "not un-shuffled: blocks that changed planes" in mixed.note
    tiny = torch.rand(1, 1, 3, 3)
    assert "no 4x4 blocks" in unshuffle_blocks(Csvar().image_change(), [tiny]).note


def test_planes_that_moved_together_are_put_together_too(photos: torch.Tensor) -> None:
    defense = Csvar(channels="together")
    hidden = defense.on_images(photos, ClientSide(generator(0)))
    found = unshuffle_blocks(defense.image_change(), [hidden]).images
    gained = ssim(found, photos, data_range=1.0) - ssim(hidden, photos, data_range=1.0)
    assert bool((gained > 0.2).all())


def test_a_version_in_which_an_image_was_not_read_is_left_out(photos: torch.Tensor) -> None:
    defense, side = ImageNoise(), ClientSide(generator(0))
    one, two = (defense.on_images(photos, side) for _ in range(2))
    alone = remove_noise(defense.image_change(), [two]).images
    assert torch.equal(remove_noise(defense.image_change(), [one[:1], two]).images, alone)
