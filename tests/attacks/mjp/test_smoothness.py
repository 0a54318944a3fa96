from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from keyhole.attacks.mjp.smoothness import (
    Roughness,
    build_opponent_axes,
    find_smoothest,
    minimise,
)
from keyhole.models.anatomy import InputLayer
from keyhole.models.puzzle import cut_patches
from keyhole.seeds import generator
from keyhole.threat import Knowledge

SIDE, PATCH = 24, 6


def knowledge(channels: int = 3) -> Knowledge:
    facts = {"mean": (0.5,) * channels, "std": (0.25,) * channels}
    return Knowledge(shape=(channels, SIDE, SIDE), classes=10, **facts)


def waves(channels: int = 3, seed: int = 0) -> Tensor:
    """A smooth image ``[C, H, W]`` without two places alike, within the box."""
    draw = generator(seed, "waves")
    y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    image = torch.zeros(channels, SIDE, SIDE, dtype=torch.double)
    for channel in range(channels):
        for _ in range(4):
            down, across, phase = (torch.rand(3, generator=draw).double() - 0.5).tolist()
            image[channel] += 0.4 * torch.sin(0.4 * (down * y + across * x) + 2 * math.pi * phase)
    return image


def cells(channels: int = 3) -> InputLayer:
    index = torch.arange(channels * SIDE * SIDE).view(1, channels, SIDE, SIDE)
    return InputLayer("", cut_patches(index, (SIDE // PATCH, SIDE // PATCH))[0].flatten(1))


def patches_of(image: Tensor) -> Tensor:
    return cut_patches(image[None], (SIDE // PATCH, SIDE // PATCH))[0].flatten(1)


def hidden(image: Tensor, size: int = 3) -> tuple[Tensor, Tensor]:
    """The image's patches without their part in a space of rough patches, and the space.

    Half of each is rough and half is a patch of the image: what is hidden can be seen.
    """
    patches = patches_of(image)
    rough = torch.randn(size, patches.shape[1], generator=generator(0, "space")).double()
    space = torch.linalg.qr((rough + 2 * patches[:size]).T)[0].T
    return patches - (patches @ space.T) @ space, space


@pytest.mark.parametrize("channels", [1, 3])
def test_cells_put_patches_together(channels: int) -> None:
    image = waves(channels)
    assert torch.equal(cells(channels).assemble(patches_of(image), (channels, SIDE, SIDE)), image)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_smooth_image_is_recovered(channels: int, seed: int) -> None:
    image = waves(channels, seed)
    rest, space = hidden(image)
    everywhere = torch.ones(16, dtype=torch.bool)
    found = find_smoothest(
        rest, space, cells(channels), knowledge(channels), moved=everywhere, rounds=6, turns=80
    )
    before = (cells(channels).assemble(rest, (channels, SIDE, SIDE)) - image).norm()
    after = (cells(channels).assemble(found, (channels, SIDE, SIDE)) - image).norm()
    assert after < 0.1 * before
    assert after < 0.1 * image.norm()


def test_patches_change_within_the_space_alone_and_only_those_that_may() -> None:
    rest, space = hidden(waves())
    moved = torch.arange(16) % 3 > 0
    found = find_smoothest(rest, space, cells(), knowledge(), moved=moved, rounds=2, turns=20)
    assert torch.equal(found[~moved], rest[~moved])
    change = found[moved] - rest[moved]
    assert change.any(1).all()
    torch.testing.assert_close((change @ space.T) @ space, change)
    assert not rest[moved].equal(found[moved])


def test_cells_that_are_not_known_yet_do_not_pull_at_their_neighbours() -> None:
    """With half of the image left out, the other half is made smooth as if it were alone."""
    rest, space = hidden(waves())
    left = torch.arange(16) % 4 < 2
    rest = torch.where(left[:, None], rest, 0)
    found = find_smoothest(rest, space, cells(), knowledge(), moved=left, rounds=5, turns=60)
    assert not found[~left].any()
    error = (found - patches_of(waves()))[left].norm()
    assert error < 0.25 * patches_of(waves())[left].norm()


def test_roughness_is_that_of_neighbours_both_of_which_count() -> None:
    image = waves(1)
    counted = torch.ones_like(image)
    counted[:, :, SIDE // 2] = 0
    roughness = Roughness(knowledge(1), counted)
    rough = 0.0
    for row in range(SIDE):
        for column in range(SIDE):
            for down, across in ((1, 0), (0, 1)):
                if row + down < SIDE and column + across < SIDE:
                    places = (0, row, column), (0, row + down, column + across)
                    if all(counted[place] for place in places):
                        rough += float(image[places[0]] - image[places[1]]) ** 2
    ridge = 1e-7 * float((image * counted).square().sum())
    assert float(roughness(image)) == pytest.approx(rough + ridge)


def test_reweighted_squares_are_absolute_values() -> None:
    image = waves(1)
    roughness = Roughness(knowledge(1), torch.ones_like(image))
    roughness.reweigh(image)
    down, right = image.diff(dim=1).abs(), image.diff(dim=2).abs()
    expected = sum(float((d.square() / (d + 0.02)).sum()) for d in (down, right))
    assert float(roughness(image)) == pytest.approx(expected, rel=1e-4)


def test_what_no_pixel_can_be_costs() -> None:
    flat = torch.full((1, SIDE, SIDE), 2.0, dtype=torch.double)  # white, the box's edge
    roughness = Roughness(knowledge(1), torch.ones_like(flat))
    assert float(roughness(flat)) < 1e-3
    assert float(roughness(flat + 0.5)) == pytest.approx(0.25 * SIDE * SIDE, rel=1e-3)


def test_colours_are_mixed_to_brightness_and_orthogonal_differences() -> None:
    axes = build_opponent_axes(3)
    torch.testing.assert_close(axes @ axes.T, torch.diag(torch.tensor([1.0, 9, 9])))
    grey = axes @ torch.ones(3)
    assert grey[1:].abs().max() < 1e-6
    assert torch.equal(build_opponent_axes(1), torch.eye(1))
    assert torch.equal(build_opponent_axes(4), torch.eye(4))


def test_minimising_ends_at_the_least_of_a_bowl() -> None:
    wanted = torch.tensor([3.0, -1.0]).double()
    scale = torch.tensor([1.0, 100.0]).double()
    with torch.no_grad():
        found = minimise(
            lambda v: (scale * (v - wanted).square()).sum(), torch.zeros(2).double(), 50
        )
    torch.testing.assert_close(found, wanted)
    assert not found.requires_grad
