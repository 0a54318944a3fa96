"""What the guard tries, for how long, and what it says where nothing was tried."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from guarded_updates import digits, uploaded
from keyhole.auditing import own_images
from keyhole.auditing.attack_choice import choose_iterative
from keyhole.auditing.guard import Guard
from keyhole.auditing.own_images import compare_losses
from keyhole.data import load
from keyhole.defenses import Defense, Dropout, NoDefense
from keyhole.models import build
from keyhole.threat import Knowledge, Observation, Server
from keyhole.update import Update


def convolutions() -> nn.Module:
    """Two convolutions: no closed form reads images through them."""
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.Sigmoid(),
        nn.Conv2d(8, 8, 3, padding=1),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def test_a_convolutional_network_is_attacked_for_as_long_as_the_time_lasts() -> None:
    model = convolutions()
    check = Guard(model=model, data=digits, seconds=3)(
        uploaded(model, [5]),
        digits.images([5]),
        digits.labels[[5]],
        (digits.images([6, 7]), digits.labels[[6, 7]]),
    )
    assert check.leaks is True
    assert check.ssim[0] > 0.5
    assert check.attack is not None
    assert check.attack.startswith("ig (naive, ")
    assert str(check.labels) == "labels: 1 of 1 inferred from the update"
    assert check.membership is not None
    assert check.membership.loss_after < check.membership.loss_before
    assert (check.membership.own, check.membership.others) == (1, 2)
    assert json.loads(json.dumps(check.to_json(), allow_nan=False))["labels"] == {
        "right": 1,
        "of": 1,
    }


@pytest.mark.parametrize(("mode", "noted"), [("train", True), ("frozen-norm", False)])
def test_batch_norms_that_go_by_the_batch_are_told_of(mode: Any, noted: bool) -> None:
    """By these iterative attacks find next to nothing: the guard must not comfort."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(72, 10))
    update = Update.from_gradient({n: torch.ones_like(p) for n, p in model.named_parameters()})
    guard = Guard(model=model, data=digits, mode=mode, seconds=0)
    found = guard(update, digits.images([5]), digits.labels[[5]])
    assert any("each batch's own statistics" in note for note in found.notes) is noted


class SlowConvolutions(nn.Module):
    """Takes a tenth of a second for each image."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = convolutions()

    def forward(self, inputs: Tensor) -> Tensor:
        time.sleep(0.1 * len(inputs))
        return cast(Tensor, self.inner(inputs))


def test_losses_of_other_images_do_not_break_the_time_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """256 others took a resnet18 half a minute, of which nobody had asked for a second."""
    monkeypatch.setattr(own_images, "SECONDS", 0.5)
    model, others = SlowConvolutions(), list(range(6, 206))
    update = uploaded(model, [5])
    began = time.monotonic()
    check = Guard(model=model, data=digits, seconds=0)(
        update,
        digits.images([5]),
        digits.labels[[5]],
        (digits.images(others), digits.labels[others]),
    )
    assert time.monotonic() - began < 10
    assert check.membership is not None
    assert check.membership.auc is not None
    assert 0 < check.membership.others < 200
    assert f"told from {check.membership.others} others" in str(check.membership)


@pytest.mark.parametrize(
    ("seconds", "images", "why"),
    [
        (0, 1, "0 seconds were given"),
        (1e-6, 1, "1 iteration fits into the time, too few: give it more seconds"),
        (30, 65, "cannot take 65 images in so short a time, 64 at most"),
    ],
)
def test_where_nothing_was_tried_nobody_knows_whether_it_leaks(
    seconds: float, images: int, why: str
) -> None:
    model, indices = convolutions(), list(range(images))
    check = Guard(model=model, data=digits, seconds=seconds)(
        uploaded(model, indices), digits.images(indices), digits.labels[indices]
    )
    assert check.leaks is None
    assert (check.attack, check.ssim, check.tried) == (None, (), ())
    assert [each.attack for each in check.not_tried] == ["ig (naive)"]
    assert why in check.not_tried[0].why
    assert check.words.startswith("no attack on images was tried, so nobody knows")
    assert why in check.words
    assert check.membership is not None
    assert check.membership.auc is None


def test_an_update_that_lost_its_meaning_has_no_losses_to_compare() -> None:
    model = convolutions()
    seen = victim(model)
    most = {n: torch.full_like(t, 3e38) for n, t in model.state_dict().items()}
    huge = replace(seen, update=Update(most))
    assert compare_losses(huge, digits, (digits.images([5]), digits.labels[[5]]), None) is None


def victim(model: nn.Module) -> Observation:
    knowledge = Knowledge(shape=digits.shape, classes=10, mean=digits.mean, std=digits.std)
    return Server(model).receive(uploaded(model, [5]), knowledge)


@pytest.mark.parametrize(
    ("defense", "data", "names"),
    [
        (NoDefense(), "digits", ["ig"]),
        (NoDefense(), "photos", ["ig", "gifd"]),
        (Dropout(), "digits", ["dia-read", "ig"]),
    ],
)
def test_iterative_attacks_are_those_that_fit_the_defense_and_the_images(
    defense: Defense, data: str, names: list[str]
) -> None:
    found = choose_iterative(defense, load(data, image_size=32 if data == "photos" else None).shape)
    assert [attack.name for attack in found] == names


def test_attacks_that_saw_nothing_are_named() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    still = Update({name: torch.zeros_like(p) for name, p in model.named_parameters()})
    check = Guard(model=model, data=digits, seconds=0)(
        still, digits.images([5]), digits.labels[[5]]
    )
    assert check.leaks is False
    assert check.tried == ("linear (naive)", "cocktail-party (naive)")
    tried = "linear (naive), cocktail-party (naive)"
    assert check.words == f"not read by the attacks tried: {tried}; not tried: ig (naive)"


def test_an_update_of_some_layers_leaves_out_the_attacks_that_read_others() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    whole = uploaded(model, [5])
    last = {n: t for n, t in whole.change.items() if n.startswith(list(whole.change)[-1][:-5])}
    assert 0 < len(last) < len(whole.change)
    check = Guard(model=model, data=digits, seconds=0)(
        replace(whole, change=last), digits.images([5]), digits.labels[[5]]
    )
    assert check.leaks is None
    assert check.not_tried[0].attack == "linear (naive)"
    assert "which the update does not have" in check.not_tried[0].why
