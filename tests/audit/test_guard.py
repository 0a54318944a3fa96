"""The guard: whether an update leaks, before it leaves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from keyhole.attacks import LabelInference
from keyhole.audit import own_images
from keyhole.audit.guard import Guard, guard_mod, iterative_for, weights_change
from keyhole.audit.own_images import compare_losses
from keyhole.data import ImageSet, load
from keyhole.defenses import Defense, Dropout, Gaussian, NoDefense
from keyhole.errors import BadUpdate, BadValue
from keyhole.federation import (
    LocalTraining,
    defended_update,
    local_update,
)
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Attacker, Observation, Server
from keyhole.update import Update

digits = load("digits")
MODEL = ("--model", "vit-small", "--data", "digits")

Keyhole = Callable[..., tuple[int, str, str]]


def uploaded(
    model: nn.Module, indices: list[int], data: ImageSet = digits, **training: Any
) -> Update:
    return local_update(
        model,
        data.normalise(digits.images(indices)),
        digits.labels[indices],
        training=LocalTraining(lr=0.1, **training),
        seed=0,
    )


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return build("vit-small", classes=10, channels=1, image_size=8)


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
    update, _ = defended_update(
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
    update = uploaded(vit, [5], digits.normalised_by(0, 1))
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
    guard = Guard(model=model, data=digits)
    known = guard.knowledge(LabelInference(), Attacker.NAIVE, digits.labels[[5]])
    return Server(model).receive(uploaded(model, [5]), known)


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
    found = iterative_for(defense, load(data, image_size=32 if data == "photos" else None))
    assert [attack.name for attack in found] == names


def test_attacks_that_saw_nothing_are_named() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    still = Update({name: torch.zeros_like(p) for name, p in model.named_parameters()})
    check = Guard(model=model, data=digits, seconds=0)(
        still, digits.images([5]), digits.labels[[5]]
    )
    assert check.leaks is False
    assert check.tried == ("linear (naive)",)
    assert check.words == "not read by the attacks tried: linear (naive); not tried: ig (naive)"


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


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, 1.5])
def test_a_threshold_that_nothing_can_reach_or_miss_is_refused(
    vit: nn.Module, value: float
) -> None:
    with pytest.raises(BadValue, match="threshold: an SSIM between 0 and 1"):
        Guard(model=vit, data=digits, threshold=value)
    with pytest.raises(BadValue, match="threshold: an SSIM between 0 and 1"):
        guard_mod(value, client=lambda context: context)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(vit: nn.Module, value: float) -> None:
    with pytest.raises(BadValue, match="seconds: a number from 0 on"):
        Guard(model=vit, data=digits, seconds=value)
    with pytest.raises(BadValue, match="seconds: a number from 0 on"):
        guard_mod(client=lambda context: context, seconds=value)


def test_what_becomes_of_an_untested_update_is_one_of_two_things() -> None:
    with pytest.raises(BadValue, match="untested: it is 'withhold' or 'warn', got 'pass'"):
        guard_mod(client=lambda context: context, untested="pass")  # type: ignore[arg-type]


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
    update = local_update(
        vit, digits.normalise(grey), labels, training=LocalTraining(lr=0.1), seed=0
    )
    assert Guard(model=vit, data=digits, seconds=0)(update, grey, labels).leaks is False


def guard_files(folder: Path, vit: nn.Module, noise: float = 0.0) -> tuple[str, ...]:
    before = vit.state_dict()
    change = uploaded(vit, [5]).change
    after = {n: t + change[n] + noise * torch.randn_like(t) for n, t in before.items()}
    save_file(dict(before), folder / "before.safetensors")
    save_file(after, folder / "after.safetensors")
    files = ("--before", "before.safetensors", "--after", "after.safetensors")
    return ("guard", *files, *MODEL, "--images", "5", "--lr", "0.1")


def test_the_guard_exits_with_1_where_an_update_leaks(
    keyhole: Keyhole, tmp_path: Path, vit: nn.Module
) -> None:
    command = guard_files(tmp_path, vit)
    code, out, _ = keyhole(*command)
    assert code == 1
    first, labels, membership = out.splitlines()
    assert labels == "labels: 1 of 1 inferred from the update"
    assert first == "LEAKS: patch-lstsq (naive) reads 1 of 1 images out of this update"
    assert membership.startswith("membership: loss on the client's images ")
    assert "1 told from 256 others with AUC" in membership
    code, out, err = keyhole(*command, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["leaks"] is True


def test_the_guard_exits_with_0_where_it_reads_nothing(
    keyhole: Keyhole, tmp_path: Path, vit: nn.Module
) -> None:
    command = (*guard_files(tmp_path, vit, noise=10.0), "--seconds", "0")
    code, out, _ = keyhole(*command)
    assert code == 0
    assert out.startswith("not read by the attacks tried")
    code, out, _ = keyhole(*command, "--json")
    assert (code, json.loads(out)["leaks"]) == (0, False)


def test_the_guard_exits_with_4_where_it_could_try_nothing(
    keyhole: Keyhole, tmp_path: Path
) -> None:
    lenet = build("lenet", classes=10, channels=1, image_size=8)
    command = (*guard_files(tmp_path, lenet), "--model", "lenet", "--seconds", "0")
    code, out, _ = keyhole(*command)
    assert code == 4
    assert out.startswith("NOT TESTED: no attack on images was tried, so nobody knows")
    code, out, err = keyhole(*command, "--json")
    assert (code, err) == (4, "")
    found = json.loads(out)
    assert (found["leaks"], found["tried"]) == (None, [])
    assert found["not_tried"] == [
        {"attack": "ig (naive)", "why": "it takes time, and 0 seconds were given"}
    ]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--images", "5,1797"), "no image '1797' among 1797"),
        (("--images", "x"), "no image 'x'"),
        (("--after", "nowhere.safetensors"), "does not exist"),
        (("--before", "nowhere.safetensors"), "does not exist"),
        (("--after", "other.safetensors"), "different models"),
        (("--before", "other.safetensors"), "another model's weights"),
        (("--after", "lost.safetensors"), "NaN or infinite"),
        (("--lr", "0"), "must be positive"),
        (("--steps", "0"), "must be positive"),
        (("--defense", "gausian"), "did you mean gaussian"),
        (("--model", "mpl"), "did you mean mlp"),
        (("--client-mode", "tarin"), "client-mode: it is train, eval, frozen-norm, got 'tarin'"),
        (("--threshold", "nan"), "threshold: an SSIM between 0 and 1 is needed, got nan"),
        (("--threshold", "inf"), "threshold: an SSIM between 0 and 1 is needed, got inf"),
        (("--threshold=-1",), "threshold: an SSIM between 0 and 1 is needed, got -1"),
        (("--threshold", "2"), "threshold: an SSIM between 0 and 1 is needed, got 2"),
        (("--threshold", "nan", "--before", "nowhere"), "threshold: "),
        (("--seconds", "nan"), "seconds: a number from 0 on is needed, got nan"),
        (("--seconds", "inf", "--data", "nowhere"), "seconds: "),
        (("--lr", "nan"), "must be positive"),
    ],
)
def test_bad_input_to_the_guard_gets_one_clear_line(
    keyhole: Keyhole, tmp_path: Path, vit: nn.Module, options: tuple[str, ...], words: str
) -> None:
    save_file({"other": torch.zeros(1)}, tmp_path / "other.safetensors")
    lost = {n: torch.full_like(t, torch.nan) for n, t in vit.state_dict().items()}
    save_file(lost, tmp_path / "lost.safetensors")
    code, out, err = keyhole(*guard_files(tmp_path, vit), *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("keyhole: ")
    assert err.count("\n") == 1


def test_what_training_changed_is_the_difference_of_two_files() -> None:
    before, after = {"w": torch.ones(2), "n": torch.tensor(3)}, {"w": torch.zeros(2)}
    with pytest.raises(BadUpdate, match="'n' is in one only"):
        weights_change(before, after)
    found = weights_change(before, {"w": torch.zeros(2), "n": torch.tensor(5)})
    assert found["w"].tolist() == [-1, -1]
    assert found["n"].item() == 2


@pytest.mark.parametrize("shape", [(5,), (1,)])
def test_two_files_of_different_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(BadUpdate):
        weights_change({"w": torch.ones(3)}, {"w": torch.ones(shape)})
