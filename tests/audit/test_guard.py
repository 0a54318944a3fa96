"""The guard: whether an update leaks, before it leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from keyhole.audit.guard import Guard, weights_change
from keyhole.data import load
from keyhole.defenses import Gaussian
from keyhole.errors import BadUpdate
from keyhole.federation import (
    LocalTraining,
    defended_update,
    local_update,
)
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

digits = load("digits")
MODEL = ("--model", "vit-small", "--data", "digits")

Keyhole = Callable[..., tuple[int, str, str]]


def uploaded(model: nn.Module, indices: list[int], **training: Any) -> Update:
    return local_update(
        model,
        digits.normalise(digits.images(indices)),
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
        check = Guard(model=vit, data=digits, defense=known)(
            update, digits.images([5]), digits.labels[[5]]
        )
        assert not check.leaks
        assert check.ssim[0] < 0.5
        assert check.words.startswith("not read by the attacks tried: patch-lstsq")
    assert "patch-lstsq (adaptive)" in check.tried


def test_what_counts_as_leaking_can_be_set(vit: nn.Module) -> None:
    update, images, labels = uploaded(vit, [5]), digits.images([5]), digits.labels[[5]]
    noisy = Gaussian(sigma=2e-4).on_update(update)
    check = Guard(model=vit, data=digits, threshold=0.0)(noisy, images, labels)
    (ssim,) = check.ssim
    assert 0.05 < ssim < 0.999
    for threshold, leaks in ((ssim - 0.01, True), (ssim + 0.01, False)):
        assert (
            Guard(model=vit, data=digits, threshold=threshold)(noisy, images, labels).leaks is leaks
        )


def test_an_update_to_which_no_cheap_attack_applies_is_not_called_safe() -> None:
    model = build("lenet", classes=10, channels=1, image_size=8)
    check = Guard(model=model, data=digits)(
        uploaded(model, [5, 6]), digits.images([5, 6]), digits.labels[[5, 6]]
    )
    assert not check.leaks
    assert (check.attack, check.ssim, check.tried) == (None, (), ())
    assert check.words == "no cheap attack applies to this update; that does not make it safe"


def test_attacks_that_saw_nothing_are_named() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    still = Update({name: torch.zeros_like(p) for name, p in model.named_parameters()})
    check = Guard(model=model, data=digits)(still, digits.images([5]), digits.labels[[5]])
    assert check.tried == ("linear (naive)",)
    assert check.words == "not read by the attacks tried: linear (naive)"


def test_the_guard_finds_the_one_image_of_a_batch_that_leaks() -> None:
    model = build("mlp", classes=10, channels=1, image_size=8)
    indices = [0, 1, 2]
    check = Guard(model=model, data=digits)(
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
    assert not Guard(model=vit, data=digits)(update, grey, labels).leaks


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
    assert out == "LEAKS: patch-lstsq (naive) reads 1 of 1 images out of this update\n"
    code, out, err = keyhole(*command, "--json")
    assert (code, err) == (1, "")
    assert json.loads(out)["leaks"] is True


def test_the_guard_exits_with_0_where_it_reads_nothing(
    keyhole: Keyhole, tmp_path: Path, vit: nn.Module
) -> None:
    code, out, _ = keyhole(*guard_files(tmp_path, vit, noise=10.0))
    assert code == 0
    assert out.startswith("not read by the attacks tried")
    code, out, _ = keyhole(*guard_files(tmp_path, vit, noise=10.0), "--json")
    assert (code, json.loads(out)["leaks"]) == (0, False)


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
    ],
)
def test_bad_input_to_the_guard_gets_one_clear_line(
    keyhole: Keyhole, tmp_path: Path, vit: nn.Module, options: tuple[str, str], words: str
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
