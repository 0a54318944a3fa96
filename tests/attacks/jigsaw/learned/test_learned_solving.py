"""The solver with a network's advice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from keyhole.attacks.jigsaw.learned import Unscrambler, solve_with_network
from keyhole.attacks.jigsaw.learned.solving import fits_shipped_network
from keyhole.attacks.jigsaw.regions import build_thumbnail, solve
from keyhole.data import load
from keyhole.defenses import Csvar
from keyhole.errors import BadValue, DoesNotFit
from keyhole.metrics import ssim


def hidden(name: str, indices: range, size: int | None = None) -> tuple[torch.Tensor, ...]:
    truth = load(name, image_size=size).images(indices)
    return truth, Csvar().shuffle(truth, torch.arange(len(truth)))


def test_faces_are_put_together_better() -> None:
    truth, shuffled = hidden("faces", range(24))
    alone, advised = (
        ssim(found.expected, truth, data_range=1.0).mean()
        for found in (solve(shuffled), solve_with_network(shuffled))
    )
    assert advised > alone


def test_digits_are_put_together_better() -> None:
    """Enlarged from 8 px: such as the network has not seen."""
    truth, shuffled = hidden("digits", range(24), 28)
    alone, advised = (
        float((found.images == truth).double().mean())
        for found in (solve(shuffled), solve_with_network(shuffled))
    )
    assert advised > alone


def test_mnist_is_put_together_far_better(data_dir: Path) -> None:
    """Images of the training part: the network learnt from others, which other people wrote."""
    truth = load("mnist", data_dir=data_dir).images(range(24))
    shuffled = Csvar().shuffle(truth, torch.arange(24))
    alone, advised = (
        ssim(found.images, truth, data_range=1.0).mean()
        for found in (solve(shuffled), solve_with_network(shuffled))
    )
    assert advised > alone + 0.15


def test_colour_photos_are_not_put_together_worse() -> None:
    truth, shuffled = hidden("photos", range(20), 32)
    alone, advised = (
        ssim(found.images, truth, data_range=1.0).mean()
        for found in (solve(shuffled), solve_with_network(shuffled))
    )
    assert advised > alone - 0.005


@pytest.mark.parametrize("size", [(32, 32), (25, 25), (56, 46), (17, 40)])
def test_pixels_only_move_inside_their_region_and_plane(size: tuple[int, int]) -> None:
    truth = torch.rand(2, 3, *size, generator=torch.Generator().manual_seed(0))
    shuffled = Csvar().shuffle(truth, torch.tensor([1, 2]))
    found = solve_with_network(shuffled)
    pixels = shuffled.flatten(1)
    assert torch.equal(pixels.gather(1, found.sources.flatten(1)), found.images.flatten(1))
    numbers = torch.arange(pixels.shape[1]).expand_as(pixels)
    assert torch.equal(found.sources.flatten(1).sort(1).values, numbers)
    assert torch.allclose(build_thumbnail(found.images), build_thumbnail(truth), atol=1e-5)


def test_it_finds_the_same_again_and_image_by_image(monkeypatch: pytest.MonkeyPatch) -> None:
    _, shuffled = hidden("photos", range(3), 32)
    first, second = solve_with_network(shuffled), solve_with_network(shuffled)
    assert torch.equal(first.expected, second.expected)
    monkeypatch.setattr(
        "keyhole.attacks.jigsaw.regions.solving.REGIONS_AT_ONCE", {"cpu": 16, "cuda": 16}
    )
    apart = solve_with_network(shuffled)
    assert torch.equal(first.images, apart.images)
    assert torch.allclose(first.confidence, apart.confidence, atol=1e-4)


@pytest.mark.parametrize("defense", [Csvar(channels="together"), Csvar(block=2), Csvar(block=4)])
def test_other_settings_of_the_defense(defense: Csvar) -> None:
    truth = load("photos", image_size=32).images(range(4))
    shuffled = defense.shuffle(truth, torch.arange(4))
    found = solve_with_network(shuffled, defense=defense).images
    gained = ssim(found, truth, data_range=1.0) - ssim(shuffled, truth, data_range=1.0)
    assert float(gained.mean()) > 0.2


def test_no_images_are_no_trouble() -> None:
    assert solve_with_network(torch.rand(0, 1, 28, 28)).images.shape == (0, 1, 28, 28)


def test_it_fits_images_of_17_to_64_px() -> None:
    sides = [side for side in range(4, 130) if fits_shipped_network(torch.zeros(1, 1, side, side))]
    assert sides == list(range(17, 65))


def test_says_what_it_cannot_do() -> None:
    image = torch.rand(1, 3, 32, 32)
    with pytest.raises(DoesNotFit, match="mixed"):
        solve_with_network(image, defense=Csvar(channels="mixed"))
    with pytest.raises(DoesNotFit, match="regions of 8 px, not of 16: use solve"):
        solve_with_network(torch.rand(1, 1, 112, 92))
    with pytest.raises(BadValue, match="finite"):
        solve_with_network(image * float("nan"))
    with pytest.raises(DoesNotFit, match="regions of 16 px"):
        solve_with_network(image, network=Unscrambler(side=4, width=8, depth=1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same() -> None:
    _, shuffled = hidden("photos", range(2), 64)
    here, there = solve_with_network(shuffled), solve_with_network(shuffled.cuda())
    assert there.images.is_cuda
    assert (here.images == there.images.cpu()).double().mean() > 0.95
