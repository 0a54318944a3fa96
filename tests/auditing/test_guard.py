"""The guard: whether an update leaks, before it leaves."""

from __future__ import annotations

import json

import torch
from torch import nn

from guarded_updates import digits, uploaded
from keyhole.auditing.guard import Guard
from keyhole.defenses import Gaussian
from keyhole.federation import (
    LocalTraining,
    compute_local_update,
    train_client,
)
from keyhole.models import build
from keyhole.seeds import generator


def test_the_guard_sees_an_update_that_leaks(vit: nn.Module) -> None:
    guard = Guard(model=vit, data=digits)
    check = guard(uploaded(vit, [5]), digits.images([5]), digits.labels[[5]])
    assert check.leaks
    assert check.attack == "patch-lstsq (naive)"
    assert check.ssim[0] > 0.99
    assert check.tried == ("patch-lstsq (naive)",)
    assert check.words == "patch-lstsq (naive) reads 1 of 1 images out of this update"
    assert json.loads(json.dumps(check.to_json()))["leaks"] is True


def test_the_guard_lets_a_noised_update_pass(vit: nn.Module) -> None:
    defense = Gaussian(sigma=10.0)
    update, _ = train_client(
        vit,
        digits.images([5]),
        digits.labels[[5]],
        data=digits,
        defense=defense,
        generator=generator(0),
        training=LocalTraining(lr=0.1),
    )
    for known in (None, defense):
        check = Guard(model=vit, data=digits, defense=known, seconds=0)(
            update, digits.images([5]), digits.labels[[5]]
        )
        assert not check.leaks
        assert check.ssim[0] < 0.5
        assert check.words.startswith("not read by the attacks tried: patch-lstsq")
    assert "patch-lstsq (adaptive)" in check.tried


def test_a_guard_that_must_assume_the_normalisation_is_not_fooled_by_another(
    vit: nn.Module,
) -> None:
    update = uploaded(vit, [5], digits.with_normalisation(0, 1))
    images, labels = digits.images([5]), digits.labels[[5]]
    sure = Guard(model=vit, data=digits, seconds=0)(update, images, labels)
    doubting = Guard(model=vit, data=digits, seconds=0, assumed_normalisation=True)(
        update, images, labels
    )
    assert doubting.ssim[0] > 0.99 > sure.ssim[0]
    assert doubting.notes == sure.notes == ()
    noise = Gaussian(sigma=10.0).on_update(update)
    doubtful = Guard(model=vit, data=digits, seconds=0, assumed_normalisation=True)(
        noise, images, labels
    )
    assert doubtful.leaks is False
    assert "pass --mean and --std" in doubtful.notes[0]


def test_what_counts_as_leaking_can_be_set(vit: nn.Module) -> None:
    update, images, labels = uploaded(vit, [5]), digits.images([5]), digits.labels[[5]]
    noisy = Gaussian(sigma=2e-4).on_update(update)
    check = Guard(model=vit, data=digits, threshold=0.0, seconds=0)(noisy, images, labels)
    (ssim,) = check.ssim
    assert 0.05 < ssim < 0.999
    for threshold, leaks in ((ssim - 0.01, True), (ssim + 0.01, False)):
        guard = Guard(model=vit, data=digits, threshold=threshold, seconds=0)
        assert guard(noisy, images, labels).leaks is leaks


def test_the_guard_finds_the_one_image_of_a_batch_that_leaks() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    indices = [0, 1, 2]
    check = Guard(model=model, data=digits, seconds=0)(
        uploaded(model, indices), digits.images(indices), digits.labels[indices]
    )
    assert len(check.ssim) == 3
    assert check.leaks is (max(check.ssim) >= 0.5)
    assert check.attack == "linear (naive)"


def test_the_guard_leaves_model_and_update_alone(vit: nn.Module) -> None:
    before = {n: t.clone() for n, t in vit.state_dict().items()}
    update = uploaded(vit, [5])
    change = {n: t.clone() for n, t in update.change.items()}
    mode = vit.training
    Guard(model=vit, data=digits)(update, digits.images([5]), digits.labels[[5]])
    assert vit.training is mode
    assert all(torch.equal(before[n], t) for n, t in vit.state_dict().items())
    assert all(torch.equal(change[n], t) for n, t in update.change.items())


def test_a_flat_image_is_not_leaked_by_a_flat_guess(vit: nn.Module) -> None:
    grey = torch.full((1, 1, 8, 8), 0.5)
    labels = torch.tensor([1])
    update = compute_local_update(
        vit, digits.normalise(grey), labels, training=LocalTraining(lr=0.1), seed=0
    )
    assert Guard(model=vit, data=digits, seconds=0)(update, grey, labels).leaks is False
