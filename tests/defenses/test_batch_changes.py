"""mixup, InstaHide and OASIS: the batch that a client's step really takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data import load
from keyhole.defenses import (
    AugmentedBatch,
    ClientSide,
    InstaHide,
    MixedBatch,
    Mixup,
    Oasis,
)
from keyhole.defenses.batch_augmentation import Augmentation, augment_batch, shear_rows
from keyhole.defenses.instahide import LARGEST_SHARE, draw_shares, flip_signs
from keyhole.errors import DoesNotFit
from keyhole.models import build
from keyhole.seeds import generator

digits = load("digits")
X = digits.normalise(digits.images([1, 2, 3]))
Y = digits.labels[[1, 2, 3]]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return build("lenet", classes=10, channels=1, image_size=8)


def side(seed: int = 0) -> ClientSide:
    return ClientSide(generator(seed), normalise=digits.normalise)


def soft_gradient(model: nn.Module, inputs: Tensor, targets: Tensor) -> Sequence[Tensor]:
    """By the definition of cross-entropy."""
    loss = -(targets * model(inputs).log_softmax(1)).sum(1).mean()
    return torch.autograd.grad(loss, list(model.parameters()))


def check_gradient(found: list[Tensor] | None, expected: Sequence[Tensor]) -> None:
    assert found is not None
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_mixup_trains_on_pairs_with_mixed_labels(model: nn.Module) -> None:
    weights = Mixup(alpha=0.4).draw_weights(3, generator(0))
    mixed = torch.stack([sum(w * x for w, x in zip(row, X, strict=True)) for row in weights])
    expected = soft_gradient(model, mixed, weights @ torch.eye(10)[Y])
    client = side()
    check_gradient(Mixup(alpha=0.4).on_step(model, X, Y, client), expected)
    assert client.telemetry == {"share": pytest.approx(float(weights[0, 0]))}


@pytest.mark.parametrize("seed", range(5))
def test_every_image_has_one_partner_other_than_itself(seed: int) -> None:
    weights = Mixup().draw_weights(4, generator(seed))
    share = weights.diagonal()
    assert torch.equal(share, share[:1].expand(4))
    partners = weights - torch.diag(share)
    torch.testing.assert_close(partners.sum(0), 1 - share)
    torch.testing.assert_close(partners.amax(1), 1 - share)


def test_shares_follow_the_beta_distribution() -> None:
    draws = generator(0)
    for alpha in (0.2, 1.0, 4.0):
        shares = torch.stack([Mixup(alpha=alpha).draw_weights(2, draws)[0, 0] for _ in range(2000)])
        expected = 1 / (4 * (2 * alpha + 1))
        assert abs(float(shares.mean()) - 0.5) < 0.03
        assert abs(float(shares.var()) / expected - 1) < 0.15


def test_a_single_image_is_not_mixed_and_the_user_is_told(model: nn.Module) -> None:
    assert Mixup().on_step(model, X[:1], Y[:1], side()) is None
    assert Mixup(alpha=0).on_step(model, X, Y, side()) is None
    assert "one image" in Mixup().caveats(model)[0]


@pytest.mark.parametrize(("k", "count", "used"), [(1, 3, 1), (2, 5, 2), (4, 6, 4), (4, 3, 3)])
def test_instahide_mixes_k_images(k: int, count: int, used: int) -> None:
    weights = InstaHide(k=k).draw_weights(count, generator(1))
    assert bool(((weights > 0).sum(1) == used).all())
    torch.testing.assert_close(weights.sum(1), torch.ones(count))
    assert bool((weights.diagonal() > 0).all())
    if used > 1:
        assert float(weights.max()) <= LARGEST_SHARE


def test_shares_of_an_image_are_bounded() -> None:
    draws = generator(0)
    drawn = torch.stack([draw_shares(2, draws) for _ in range(500)])
    assert float(drawn.max()) <= LARGEST_SHARE
    assert float(drawn.std()) > 0.05


def test_flips_turn_half_of_all_pixels_into_their_complement() -> None:
    pixels = torch.rand(4, 1, 50, 50, generator=generator(0))
    inputs = digits.normalise(pixels)
    flipped = flip_signs(inputs, side())
    whole = digits.normalise(1 - pixels)
    kept = (flipped - inputs).abs() < 1e-5
    assert bool((kept | ((flipped - whole).abs() < 1e-5)).all())
    assert 0.45 < float(kept.double().mean()) < 0.55


def test_instahide_flips_what_it_mixed(model: nn.Module) -> None:
    draws = generator(0)
    weights = InstaHide(k=2).draw_weights(3, draws)
    mixed = torch.einsum("ij,jchw->ichw", weights, X)
    expected = flip_signs(mixed, ClientSide(draws, normalise=digits.normalise))
    found = InstaHide(k=2).on_step(model, X, Y, side())
    check_gradient(found, soft_gradient(model, expected, weights @ torch.eye(10)[Y]))
    plain = InstaHide(k=2, flips=False).on_step(model, X, Y, side())
    check_gradient(plain, soft_gradient(model, mixed, weights @ torch.eye(10)[Y]))
    assert InstaHide(k=1, flips=False).on_step(model, X, Y, side()) is None


def test_oasis_appends_turned_copies(model: nn.Module) -> None:
    batch = torch.cat([X, *(X.rot90(times, (2, 3)) for times in (1, 2, 3))])
    logits = model(batch)
    expected = torch.autograd.grad(F.cross_entropy(logits, Y.repeat(4)), list(model.parameters()))
    client = side()
    check_gradient(Oasis().on_step(model, X, Y, client), expected)
    assert client.telemetry == {"batch": 12}


@pytest.mark.parametrize(
    ("copies", "count"), [("flips", 9), ("shears", 6), ("rotations+shears", 15)]
)
def test_oasis_can_mirror_and_shear(model: nn.Module, copies: str, count: int) -> None:
    client = side()
    assert Oasis(copies=copies).on_step(model, X, Y, client) is not None  # type: ignore[arg-type]
    assert client.telemetry == {"batch": count}
    assert Oasis(copies="none").on_step(model, X, Y, client) is None


def test_only_square_images_can_be_turned() -> None:
    model = build("lenet", classes=10, channels=1, image_size=(8, 6))
    with pytest.raises(DoesNotFit, match="cannot turn images of 8x6"):
        Oasis().on_step(model, X[..., :6], Y, side())
    assert Oasis(copies="flips").on_step(model, X[..., :6], Y, side()) is not None


def test_a_sheared_image_moves_by_whole_pixels_around_its_middle() -> None:
    image = torch.zeros(1, 1, 5, 5)
    image[..., 2] = 1.0
    sheared = shear_rows(image)[0, 0]
    assert sheared.argmax(1).tolist() == [1, 2, 2, 2, 3]
    assert torch.equal(sheared.sum(1), torch.ones(5))


def test_augmentations_append_one_copy_each() -> None:
    every = list(Augmentation)
    batch = augment_batch(X, every)
    assert len(batch) == 3 * (1 + len(every))
    assert torch.equal(batch[:3], X)
    assert torch.equal(batch[3:6].rot90(3, (2, 3)), X)


def test_what_is_told_of_the_batch() -> None:
    assert Mixup().batch_change() == MixedBatch(flips=False)
    assert InstaHide().batch_change() == MixedBatch(flips=True)
    assert Oasis(copies="flips").batch_change() == AugmentedBatch(
        (Augmentation.MIRROR, Augmentation.UPSIDE_DOWN)
    )
