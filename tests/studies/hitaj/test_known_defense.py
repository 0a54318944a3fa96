"""Defenses that a gradient passes: what is shown is what a client sees, the gradient goes home."""

from __future__ import annotations

import pytest
import torch

from keyhole.defenses import Defense
from keyhole.defenses.csvar import Csvar
from keyhole.defenses.image_noise import ImageNoise
from keyhole.seeds import generator
from keyhole_studies.hitaj import make_differentiable, make_straight_through


@pytest.fixture
def images() -> torch.Tensor:
    return torch.rand(4, 3, 28, 28, generator=generator(0, "images"))


@pytest.mark.parametrize("defense", [Csvar(), ImageNoise(sigma=20)], ids=str)
def test_it_shows_what_the_clients_see(defense: Defense, images: torch.Tensor) -> None:
    from keyhole.defenses import ClientSide

    ours = make_differentiable(defense, generator(5))(images)
    theirs = defense.on_images(images, ClientSide(generator=generator(5)))
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours, images, atol=1e-2)


@pytest.mark.parametrize("defense", [Csvar(), ImageNoise(sigma=20)], ids=str)
def test_every_call_is_another_draw(defense: Defense, images: torch.Tensor) -> None:
    passed = make_differentiable(defense, generator(5))
    assert not torch.equal(passed(images), passed(images))


def test_the_gradient_of_a_shuffle_goes_where_the_pixel_came_from(images: torch.Tensor) -> None:
    images = images.requires_grad_()
    shown = make_differentiable(Csvar(), generator(5))(images)
    weights = torch.rand(shown.shape, generator=generator(1))
    (found,) = torch.autograd.grad((shown * weights).sum(), images)
    pairs = {
        frozenset(zip(x.flatten().tolist(), w.flatten().tolist(), strict=True))
        for x, w in ((images, found), (shown, weights))
    }
    assert len(pairs) == 1, "each pixel keeps its weight wherever it goes"
    assert not torch.equal(found, weights)


def test_the_gradient_passes_rounding_and_clipping_unchanged(images: torch.Tensor) -> None:
    images = images.requires_grad_()
    shown = make_straight_through(ImageNoise(sigma=50), generator(5))(images)
    (found,) = torch.autograd.grad(shown.sum(), images)
    assert torch.equal(found, torch.ones_like(found))
