"""``keyhole guard``: exit codes, and what it says of bad input."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from guarded_updates import uploaded
from keyhole.auditing.guard import Guard
from keyhole.cli.guard import guard
from keyhole.models import build

MODEL = ("--model", "vit-small", "--data", "digits")


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return build("vit-small", classes=10, channels=1, image_size=8)


Keyhole = Callable[..., tuple[int, str, str]]


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
        (
            ("--client-mode", "tarin"),
            "client-mode: choose one of train, eval, frozen-norm, got 'tarin'",
        ),
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


@pytest.mark.parametrize("name", ["threshold", "seconds"])
def test_the_command_has_the_defaults_of_the_library(name: str) -> None:
    command, library = (inspect.signature(each).parameters[name] for each in (guard, Guard))
    assert command.default == library.default
