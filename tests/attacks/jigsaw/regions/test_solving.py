from __future__ import annotations

import pytest
import torch

from keyhole.attacks.jigsaw.regions import build_thumbnail, solve
from keyhole.defenses.csvar import Csvar
from keyhole.errors import BadValue, DoesNotFit


@pytest.mark.parametrize(
    ("planes", "size"), [(3, (32, 32)), (1, (32, 32)), (3, (28, 28)), (1, (56, 46)), (3, (64, 80))]
)
def test_smooth_images_are_put_together(hide, planes: int, size: tuple[int, int]) -> None:
    hidden = hide(planes, *size)
    found = solve(hidden.shuffled)
    assert hidden.right(hidden.shuffled) < 0.3
    assert hidden.right(found.images) > 0.9
    assert (found.expected - hidden.truth).square().mean() < 1e-4


@pytest.mark.parametrize("size", [(32, 32), (25, 25), (23, 37), (8, 8), (5, 60)])
def test_pixels_only_move_inside_their_region_and_plane(hide, size: tuple[int, int]) -> None:
    hidden = hide(3, *size)
    found = solve(hidden.shuffled)
    pixels = hidden.shuffled.flatten(1)
    assert torch.equal(pixels.gather(1, found.sources.flatten(1)), found.images.flatten(1))
    numbers = torch.arange(pixels.shape[1]).expand_as(pixels)
    assert torch.equal(found.sources.flatten(1).sort(1).values, numbers)
    assert torch.allclose(build_thumbnail(found.images), build_thumbnail(hidden.truth), atol=1e-5)


def test_strips_of_single_pixels_go_on_as_the_image_ends(hide) -> None:
    hidden = hide(1, 25, 25, count=4)
    found = solve(hidden.shuffled).images
    strips = [
        (image[..., :, 24] - hidden.truth[..., :, 24]).abs().mean()
        for image in (hidden.shuffled, found)
    ]
    assert strips[1] < strips[0] / 2


def test_confidence_is_the_share_expected_to_be_right(hide) -> None:
    smooth = solve(hide(3).shuffled).confidence
    rough = solve(torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))).confidence
    assert ((smooth > 0.7) & (smooth <= 1)).all()
    assert (rough < smooth).all()
    assert solve(torch.zeros(1, 1, 32, 32)).confidence.tolist() == pytest.approx([1.0], abs=0.01)


def test_each_image_is_solved_by_itself(hide, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = hide(3, count=5)
    together = solve(hidden.shuffled)
    monkeypatch.setattr(
        "keyhole.attacks.jigsaw.regions.solving.REGIONS_AT_ONCE", {"cpu": 32, "cuda": 32}
    )
    apart = solve(hidden.shuffled)
    assert torch.equal(together.images, apart.images)
    assert torch.allclose(together.confidence, apart.confidence, atol=1e-4)


def test_an_adviser_has_the_last_word(hide) -> None:
    hidden = hide()

    def stubborn(cells, coloured, seams, beliefs):
        stay = torch.arange(16).expand(beliefs.shape[:-1])
        return stay, torch.eye(16).expand_as(beliefs), torch.zeros_like(beliefs)

    left = solve(hidden.shuffled, defense=Csvar(channels="together"), adviser=stubborn)
    assert torch.equal(left.images, hidden.shuffled)
    assert torch.equal(left.expected, hidden.shuffled)
    assert float(left.confidence.max()) == 0


def test_planes_that_moved_alike_are_known_to(hide) -> None:
    defense = Csvar(channels="together")
    hidden = hide(3, defense=defense)
    assert hidden.right(solve(hidden.shuffled, defense=defense).images) > 0.9


@pytest.mark.parametrize("block", [2, 4])
def test_one_block_size_everywhere(hide, block: int) -> None:
    defense = Csvar(block=block)
    hidden = hide(3, defense=defense)
    assert hidden.right(solve(hidden.shuffled, defense=defense).images) > 0.9


def test_block_sizes_may_be_given(hide) -> None:
    hidden = hide(3, defense=Csvar(block=2))
    solution = solve(hidden.shuffled, fine=torch.ones(2, 4, 4, dtype=torch.bool))
    assert hidden.right(solution.images) > 0.9


def test_no_images_are_no_trouble() -> None:
    assert solve(torch.rand(0, 3, 32, 32)).images.shape == (0, 3, 32, 32)


def test_says_what_it_cannot_do() -> None:
    image = torch.rand(1, 3, 32, 32)
    with pytest.raises(DoesNotFit, match="mixed"):
        solve(image, defense=Csvar(channels="mixed"))
    with pytest.raises(BadValue, match="finite"):
        solve(image * float("nan"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_the_same(hide) -> None:
    hidden = hide(3, 64, 64)
    here, there = solve(hidden.shuffled), solve(hidden.shuffled.cuda())
    assert there.images.is_cuda
    assert (here.images == there.images.cpu()).double().mean() > 0.95
