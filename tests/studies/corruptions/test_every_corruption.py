from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from skimage import data
from torch import Tensor
from torch.nn import functional as F

from keyhole.errors import BadValue, DoesNotFit
from keyhole_studies.corruptions import CORRUPTIONS, SEVERITIES, Corruption, Strengths

EVERY = pytest.mark.parametrize("corruption", CORRUPTIONS.values(), ids=lambda c: c.name)
RANDOM = {
    *("gaussian-noise", "shot-noise", "impulse-noise", "speckle-noise", "motion-blur"),
    *("fog", "frost", "snow", "elastic"),
}


@cache
def photos(height: int, width: int) -> Tensor:
    """An astronaut, a cup of coffee and a cat."""
    raw = [data.astronaut(), data.coffee(), data.chelsea()]
    images = [torch.from_numpy(image).permute(2, 0, 1)[None] / 255 for image in raw]
    whole = [F.interpolate(x, (height, width), mode="bilinear", antialias=True) for x in images]
    return torch.cat(whole).clamp(0, 1)


def corrupted(corruption: Corruption, images: Tensor, severity: int, seed: int = 0) -> Tensor:
    return corruption(images, severity, torch.Generator().manual_seed(seed))


def fit(corruption: Corruption, images: Tensor) -> Tensor:
    """The images in grey where the corruption bears it."""
    return images if corruption.needs_colour else images.mean(1, keepdim=True)


@EVERY
@pytest.mark.parametrize("side", [32, 96, 224])
def test_severities_lead_ever_farther_from_the_image(corruption: Corruption, side: int) -> None:
    images = photos(side, side)
    for seed in (0, 1):
        spoilt = [corrupted(corruption, images, severity, seed) for severity in SEVERITIES]
        distances = torch.stack([(s - images).square().flatten(1).mean(1) for s in spoilt])
        means = distances.mean(1).tolist()
        assert means[0] > 1e-5
        assert all(b > 1.02 * a for a, b in pairwise(means))


@EVERY
def test_independent_draws_do_not_undo_the_order_of_severities(corruption: Corruption) -> None:
    images = photos(64, 64)
    distances = [
        float((corrupted(corruption, images, s, seed=s) - images).square().mean())
        for s in SEVERITIES
    ]
    assert distances == sorted(distances)


@EVERY
@pytest.mark.parametrize("size", [(8, 8), (25, 25), (33, 47), (112, 92)], ids=str)
@pytest.mark.parametrize("grey", [True, False])
def test_images_of_any_size_come_back_whole(
    corruption: Corruption, size: tuple[int, int], grey: bool
) -> None:
    images = fit(corruption, photos(*size)) if grey else photos(*size)
    for severity in (1, 5):
        found = corrupted(corruption, images, severity)
        assert found.shape == images.shape
        assert found.dtype == images.dtype
        assert found.min() >= 0
        assert found.max() <= 1
        assert not torch.equal(found, images)


@EVERY
def test_the_seed_decides_and_the_global_generator_rests(corruption: Corruption) -> None:
    images = photos(32, 32)
    before = torch.get_rng_state()
    once, again = (corrupted(corruption, images, 3) for _ in range(2))
    assert torch.equal(once, again)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(corrupted(corruption, images, 3, seed=1), once) == (
        corruption.name not in RANDOM
    )


@EVERY
def test_images_of_a_batch_are_spoilt_each_in_its_own_way(corruption: Corruption) -> None:
    twice = photos(32, 32)[:1].expand(2, -1, -1, -1)
    one, other = corrupted(corruption, twice, 3)
    assert torch.allclose(one, other, atol=1e-6) == (corruption.name not in RANDOM)


@EVERY
def test_the_images_handed_in_stay_as_they_were(corruption: Corruption) -> None:
    images = photos(32, 32).clone().requires_grad_()
    found = corrupted(corruption, images, 5)
    assert torch.equal(images, photos(32, 32))
    assert not found.requires_grad


@EVERY
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_type_of_the_images_is_kept(corruption: Corruption, dtype: torch.dtype) -> None:
    images = photos(32, 32)
    found = corrupted(corruption, images.to(dtype), 3)
    assert found.dtype == dtype
    distances = [
        float((x - images).std()) for x in (found.float(), corrupted(corruption, images, 3))
    ]
    assert distances[0] == pytest.approx(distances[1], rel=0.05)


@EVERY
@pytest.mark.parametrize("brightness", [0.0, 1.0])
def test_black_and_white_images_are_borne(corruption: Corruption, brightness: float) -> None:
    images = torch.full((1, 3, 32, 32), brightness)
    assert not corrupted(corruption, images, 5).isnan().any()


@EVERY
def test_a_corruption_says_what_it_is(corruption: Corruption) -> None:
    assert CORRUPTIONS[corruption.name] is corruption
    assert corruption.summary
    assert corruption.family in {"noise", "blur", "weather", "digital"}


def test_every_family_has_its_four_or_more() -> None:
    families = [corruption.family for corruption in CORRUPTIONS.values()]
    assert {family: families.count(family) for family in families} == {
        "noise": 4,
        "blur": 4,
        "weather": 5,
        "digital": 4,
    }


def test_only_what_changes_colours_is_kept_from_grey_images() -> None:
    assert [c.name for c in CORRUPTIONS.values() if c.needs_colour] == ["saturate"]
    with pytest.raises(DoesNotFit, match="these images are grey"):
        corrupted(CORRUPTIONS["saturate"], torch.rand(1, 1, 8, 8), 1)


@pytest.mark.parametrize(
    ("images", "why"),
    [
        (torch.rand(3, 8, 8), "float images"),
        (torch.rand(1, 2, 8, 8), "1 or 3 channels"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.uint8), "torch.uint8"),
        (torch.rand(1, 3, 8, 8) * 255, r"in \[0, 1\]"),
        (torch.rand(1, 3, 8, 8) - 0.5, r"in \[0, 1\]"),
        (torch.full((1, 3, 8, 8), torch.nan), r"in \[0, 1\]"),
    ],
)
def test_images_of_another_kind_are_refused(images: Tensor, why: str) -> None:
    with pytest.raises(DoesNotFit, match=why):
        corrupted(CORRUPTIONS["fog"], images, 1)


@pytest.mark.parametrize("severity", [0, 6, -1])
def test_other_severities_are_refused(severity: int) -> None:
    with pytest.raises(BadValue, match="from 1 to 5"):
        corrupted(CORRUPTIONS["fog"], photos(32, 32), severity)


@pytest.mark.parametrize("in_pixels", [True, False])
def test_strengths_between_two_sizes_lie_between_them(in_pixels: bool) -> None:
    strengths = Strengths((1, 2, 3, 4, 5), (4, 8, 12, 16, 20), in_pixels)
    at = [strengths.at(3, side) for side in (8, 32, 85, 224, 448)]
    assert at[:2] == [3, 3]
    assert at[2] == pytest.approx(6, rel=0.01)  # halfway, by ratios, in size and in strength
    assert at[3:] == pytest.approx([12, 24 if in_pixels else 12])
