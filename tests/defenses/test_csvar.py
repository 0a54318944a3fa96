"""CSVAR: what a shuffle keeps, what it moves, and that its owner can undo it."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision import tv_tensors
from torchvision.transforms import v2

from keyhole.defenses import ClientSide, Csvar
from keyhole.defenses.regions import find_sensitive_regions, region_side, split_into_zones
from keyhole.errors import BadValue, DoesNotFit
from keyhole.seeds import generator

SIZES = [(28, 28), (32, 32), (64, 64), (112, 92), (224, 224), (25, 33), (7, 5), (1, 1)]
RULES = ["apart", "mixed", "together"]


def pictures(size: tuple[int, int], channels: int = 3, count: int = 2, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, channels, *size), generator=draw, dtype=torch.uint8)


def blocks_of(
    image: np.ndarray, top: int, left: int, tall: int, wide: int, side: int
) -> list[bytes]:
    """The blocks of one region and plane, as bytes."""
    part = image[top : top + tall, left : left + wide]
    return [
        part[y : y + side, x : x + side].tobytes()
        for y in range(0, tall, side)
        for x in range(0, wide, side)
    ]


def regions(size: tuple[int, int]) -> list[tuple[int, int, int, int, int, int, int, int]]:
    """Row, column, top, left, tall, wide, fine, coarse of every region."""
    side = region_side(*size)
    return [
        (
            zone.top // side + row,
            zone.left // side + column,
            zone.top + row * zone.tall,
            zone.left + column * zone.wide,
            zone.tall,
            zone.wide,
            zone.fine,
            zone.coarse,
        )
        for zone in split_into_zones(*size)
        for row in range(zone.rows)
        for column in range(zone.columns)
    ]


@settings(max_examples=30, deadline=None)
@given(
    size=st.one_of(st.sampled_from(SIZES[:4]), st.tuples(st.integers(1, 50), st.integers(1, 50))),
    channels=st.integers(1, 4),
    seed=st.integers(0, 2**62),
)
def test_blocks_stay_whole_in_their_region_and_plane(
    size: tuple[int, int], channels: int, seed: int
) -> None:
    """And so does each region's multiset of pixels: fine blocks where it varies most."""
    image = pictures(size, channels, 1, seed)
    hidden = Csvar().shuffle(image, torch.tensor([seed]))[0].numpy()
    fine = find_sensitive_regions(image)[0]
    for row, column, top, left, tall, wide, small, large in regions(size):
        side = small if fine[row, column] else large
        for plane in range(channels):
            where = (top, left, tall, wide, side)
            before = blocks_of(image[0, plane].numpy(), *where)
            after = blocks_of(hidden[plane], *where)
            assert sorted(before) == sorted(after)


@pytest.mark.parametrize("size", [(32, 32), (28, 28), (25, 33)])
def test_mixed_planes_keep_the_blocks_of_all_planes(size: tuple[int, int]) -> None:
    image = pictures(size, 3, 1)
    hidden = Csvar(channels="mixed").shuffle(image, torch.tensor([3]))[0].numpy()
    fine = find_sensitive_regions(image)[0]
    changed = 0
    for row, column, top, left, tall, wide, small, large in regions(size):
        where = (top, left, tall, wide, small if fine[row, column] else large)
        before = [blocks_of(image[0, plane].numpy(), *where) for plane in range(3)]
        after = [blocks_of(hidden[plane], *where) for plane in range(3)]
        assert sorted(chain(*before)) == sorted(chain(*after))
        changed += any(sorted(b) != sorted(a) for b, a in zip(before, after, strict=True))
    assert changed > len(regions(size)) // 2


def test_planes_together_keep_colours() -> None:
    image = pictures((32, 32), 3, 1)
    hidden = Csvar(channels="together").shuffle(image, torch.tensor([3]))
    colours = {tuple(c) for c in image[0].flatten(1).T.tolist()}
    assert {tuple(c) for c in hidden[0].flatten(1).T.tolist()} == colours
    apart = Csvar().shuffle(image, torch.tensor([3]))
    assert {tuple(c) for c in apart[0].flatten(1).T.tolist()} != colours


@settings(max_examples=40, deadline=None)
@given(
    size=st.one_of(st.sampled_from(SIZES), st.tuples(st.integers(1, 70), st.integers(1, 70))),
    channels=st.integers(1, 4),
    seed=st.integers(0, 2**62),
    rule=st.sampled_from(RULES),
    kind=st.sampled_from(["uint8", "float32", "float64", "int32"]),
)
def test_the_owner_gets_the_original_back(
    size: tuple[int, int], channels: int, seed: int, rule: str, kind: str
) -> None:
    images = pictures(size, channels, 2, seed)
    given_ = images if kind == "uint8" else images.to(getattr(torch, kind))
    if kind.startswith("float"):
        given_ = given_ / 255
    defense, seeds = Csvar(channels=rule), torch.tensor([seed, seed ^ 1])
    hidden = defense.shuffle(given_, seeds)
    assert hidden.dtype == given_.dtype
    fine = find_sensitive_regions(given_) if rule == "mixed" else None
    assert torch.equal(defense.restore(hidden, seeds, fine), given_)


def test_mixed_planes_must_be_told_what_was_fine() -> None:
    images = pictures((32, 32))
    with pytest.raises(DoesNotFit, match="pass it as `fine`"):
        Csvar(channels="mixed").restore(images, torch.tensor([1, 2]))


def test_an_image_is_shuffled_by_its_own_seed_whatever_stands_beside_it() -> None:
    images, seeds = pictures((64, 64), count=9), torch.arange(9)
    together = Csvar().shuffle(images, seeds)
    for number in (0, 4, 8):
        alone = Csvar().shuffle(images[number : number + 1], seeds[number : number + 1])
        assert torch.equal(alone[0], together[number])


def test_many_images_are_shuffled_in_chunks() -> None:
    images, seeds = pictures((224, 224), count=20), torch.arange(20)
    hidden = Csvar().shuffle(images, seeds)
    assert torch.equal(Csvar().restore(hidden, seeds), images)
    assert not torch.equal(hidden[0], hidden[1])


def test_every_epoch_has_another_shuffle() -> None:
    image = pictures((32, 32), count=1).float() / 255
    side = ClientSide(generator(0))
    one, two = Csvar().on_images(image, side), Csvar().on_images(image, side)
    assert not torch.equal(one, two)
    assert torch.equal(one, Csvar().on_images(image, ClientSide(generator(0))))


def test_sources_are_the_shuffle_with_a_gradient() -> None:
    images = (pictures((28, 28), 3).float() / 255).requires_grad_(True)
    defense, seeds = Csvar(), torch.tensor([4, 5])
    plan = defense.plan_shuffle(images.detach(), defense.draw_numbers(images, seeds))
    moved = images.flatten(1).gather(1, plan.sources(3)).view_as(images)
    assert torch.equal(moved.detach(), defense.shuffle(images.detach(), seeds))
    weight = torch.rand(moved.shape, generator=generator(1))
    (gradient,) = torch.autograd.grad((moved * weight).sum(), images)
    assert torch.equal(gradient, plan.undo(weight))


def test_one_size_of_blocks_everywhere() -> None:
    image = pictures((32, 32), 1, 1)
    assert torch.equal(Csvar(block=8).shuffle(image, torch.tensor([1])), image)
    hidden = Csvar(block=4).shuffle(image, torch.tensor([1]))[0, 0].numpy()
    for _, _, top, left, tall, wide, _, _ in regions((32, 32)):
        where = (top, left, tall, wide, 4)
        assert sorted(blocks_of(hidden, *where)) == sorted(blocks_of(image[0, 0].numpy(), *where))
    with pytest.raises(ValueError, match="power of two"):
        Csvar(block=3)


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 3, 0, 4), (5,)])
def test_what_is_no_batch_of_images_is_told(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadValue, match=r"CSVAR takes images \[B, C, H, W\]"):
        Csvar().shuffle(torch.zeros(shape), torch.zeros(1, dtype=torch.long))


def test_no_images_are_no_images() -> None:
    assert Csvar().shuffle(torch.zeros(0, 3, 8, 8), torch.zeros(0, dtype=torch.long)).shape[0] == 0


class TestTransform:
    """Among torchvision's transforms."""

    def test_tensors_images_and_pil_are_shuffled_alike(self) -> None:
        image = pictures((33, 40), 3, 1)[0]
        pil = Image.fromarray(image.permute(1, 2, 0).numpy())
        found = []
        for given_ in (image, tv_tensors.Image(image), pil):
            torch.manual_seed(3)
            found.append(Csvar().transform()(given_))
        assert type(found[0]) is Tensor
        assert isinstance(found[1], tv_tensors.Image)
        assert isinstance(found[2], Image.Image)
        assert torch.equal(found[0], found[1].as_subclass(Tensor))
        assert np.array_equal(np.asarray(found[2]), found[0].permute(1, 2, 0).numpy())
        assert not torch.equal(found[0], image)

    def test_labels_and_boxes_pass(self) -> None:
        boxes = tv_tensors.BoundingBoxes([[0, 0, 4, 4]], format="XYXY", canvas_size=(32, 32))
        image = tv_tensors.Image(pictures((32, 32), 3, 1)[0])
        shown, same, label = Csvar().transform()(image, boxes, 7)
        assert torch.equal(same, boxes)
        assert label == 7
        assert not torch.equal(shown, image)

    def test_in_a_pipeline(self) -> None:
        steps = v2.Compose([Csvar().transform(), v2.ToDtype(torch.float32, scale=True)])
        image = pictures((32, 32), 3, 4)
        assert steps(image).dtype == torch.float32

    def test_what_is_no_image_is_told(self) -> None:
        with pytest.raises(BadValue, match="CSVAR takes images"):
            Csvar().transform()(torch.zeros(4, 4))


def test_grey_images_may_lie_channels_last() -> None:
    image = torch.rand(2, 32, 32, 1).permute(0, 3, 1, 2)
    seeds = torch.tensor([1, 2])
    plain = Csvar().shuffle(image.clone(memory_format=torch.contiguous_format), seeds)
    assert torch.equal(Csvar().shuffle(image, seeds), plain)
    assert torch.equal(Csvar().restore(plain, seeds), image)
