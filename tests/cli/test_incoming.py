"""``keyhole guard --incoming``: exit codes, and what it says of bad input."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from altered_models import ATTACKS, alter, make, weights_of
from keyhole.auditing.incoming import hash_weights

Keyhole = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    honest = weights_of(make("lenet"))
    save_file(honest, tmp_path / "global.safetensors")
    muted = alter(ATTACKS["single-out"], make("lenet"))
    assert muted is not None
    save_file(muted, tmp_path / "muted.safetensors")
    save_file({**honest, "0.bias": torch.full((12,), torch.nan)}, tmp_path / "nan.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no tensors")


def test_an_honest_model_exits_with_0_and_shows_its_hash(keyhole: Keyhole) -> None:
    command = ("guard", "--incoming", "global.safetensors", "--model", "lenet")
    code, out, err = keyhole(*command, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert (found["suspicious"], found["alarms"]) == (False, [])
    assert found["hash"] == hash_weights(weights_of(make("lenet")))
    code, out, _ = keyhole(*command, "--data", "digits", "--previous", "global.safetensors")
    assert code == 0
    first, last = out.splitlines()
    assert first.startswith("no alarm in these checks: values, architecture, rows")
    assert "loss" in first
    assert last == f"hash: {found['hash']}"


def test_an_altered_model_exits_with_1(keyhole: Keyhole) -> None:
    code, out, _ = keyhole("guard", "--incoming", "muted.safetensors", "--model", "lenet")
    assert code == 1
    assert out.startswith("ALARM: zero last layer in '8': all of its 10 rows are zero")


def test_values_that_are_not_finite_exit_with_1(keyhole: Keyhole) -> None:
    code, out, _ = keyhole("guard", "--incoming", "nan.safetensors", "--model", "lenet")
    assert code == 1
    assert out.startswith("ALARM: not finite: the model has 12 NaN or infinite values in '0.bias'")


def test_another_hash_exits_with_1(keyhole: Keyhole) -> None:
    command = ("guard", "--incoming", "global.safetensors", "--model", "lenet", "--expected-hash")
    assert keyhole(*command, hash_weights(weights_of(make("lenet"))))[0] == 0
    code, out, _ = keyhole(*command, "0" * 64)
    assert code == 1
    assert out.startswith("ALARM: other model: its hash is")


def test_without_a_model_it_says_what_was_not_checked(keyhole: Keyhole) -> None:
    code, out, _ = keyhole("guard", "--incoming", "global.safetensors")
    assert code == 0
    assert "not checked: architecture: it takes the model's name" in out
    assert keyhole("guard", "--incoming", "muted.safetensors")[0] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--incoming", "nowhere.safetensors"), "does not exist"),
        (("--incoming", "broken.safetensors"), "is not a safetensors file"),
        (("--incoming", "global.safetensors", "--previous", "nowhere"), "does not exist"),
        (("--incoming", "global.safetensors", "--model", "lenett"), "did you mean lenet"),
        (("--incoming", "global.safetensors", "--expected-hash", "ab"), "64 hexadecimal digits"),
        (("--incoming", "global.safetensors", "--before", "a"), "give --incoming, or --before"),
        (("--incoming", "global.safetensors", "--data", "digits"), "give --model too"),
        (("--previous", "global.safetensors"), "belong to --incoming FILE"),
        (("--model", "lenet"), "Missing option '--before', '--after', '--data': give it"),
        ((), "Missing option '--before', '--after', '--model', '--data'"),
    ],
)
def test_bad_input_gets_one_clear_line(
    keyhole: Keyhole, options: tuple[str, ...], words: str
) -> None:
    code, out, err = keyhole("guard", *options)
    assert (code, out) == (2, "")
    assert words in err
    assert err.startswith("keyhole: ")
    assert err.count("\n") == 1
