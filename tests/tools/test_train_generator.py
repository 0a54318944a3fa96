"""The script that trains the generator of gifd."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from keyhole.attacks.generative import ConditionalGenerator, load_generator
from keyhole.attacks.generative.prior import GENERATORS, ODD_DIA_VICTIMS
from keyhole.data import ImageSet, load
from keyhole.update import read_safetensors
from scripts import load_script

script = load_script("tools/train_generator.py")

SMALLEST = (
    "--steps 2 --batch 4 --latent 4 --features 16 12 --discriminator-features 8 8 --most 8 --seed 5"
)


@pytest.fixture
def cifar(monkeypatch: pytest.MonkeyPatch) -> ImageSet:
    """Digits at 16 px in colour that stand for CIFAR-10."""
    digits = load("digits", image_size=16)
    colours = replace(
        digits,
        name="cifar10",
        pixels=lambda indices: digits.pixels(indices).expand(-1, 3, -1, -1),
        mean=digits.mean * 3,
        std=digits.std * 3,
    )
    monkeypatch.setattr(script, "load", lambda name, data_dir: colours)
    return colours


def test_a_command_trains_it(
    cifar: ImageSet, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "it.safetensors"
    script.main([str(path), *SMALLEST.split()])
    out = capsys.readouterr().out
    assert "step 2, 100% done: losses" in out
    assert "2 steps in " in out
    plan = json.loads(read_safetensors(path)[1][GENERATORS.kind])
    assert (plan["shape"], plan["latent"], plan["classes"]) == ([3, 16, 16], 4, 10)
    assert plan["features"] == [16, 12]
    made = load_generator(path)
    assert isinstance(made, ConditionalGenerator)
    assert made.shape == (3, 16, 16)


def test_the_seed_decides_what_is_trained(cifar: ImageSet, tmp_path: Path) -> None:
    states = []
    for number, seed in enumerate(("5", "5", "6")):
        path = tmp_path / f"{number}.safetensors"
        script.main([str(path), *SMALLEST.split(), "--seed", seed])
        states.append(load_generator(path).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert any(not torch.equal(states[0][name], states[2][name]) for name in states[0])


def test_it_learns_from_no_victim(cifar: ImageSet) -> None:
    images, labels, classes = script.load_images(None, None)
    chosen = [i for i in range(1, len(cifar), 2) if i not in ODD_DIA_VICTIMS]
    assert len(images) == len(labels) == len(chosen)
    assert torch.equal(labels, cifar.labels[chosen])
    assert images.dtype == torch.uint8
    assert classes == 10


def test_the_defaults_are_those_of_the_shipped_file() -> None:
    asked = script.parse_arguments(["out"])
    shipped = load_generator()
    assert (asked.steps, asked.batch, asked.seed) == (1613, 256, 0)
    assert asked.latent == shipped.latent
    assert tuple(asked.features) == tuple(shipped.features)
    path = Path(script.__file__).parents[1] / "src/keyhole/attacks/generative/weights"
    plan = json.loads(read_safetensors(path / "cifar10.safetensors")[1][GENERATORS.kind])
    assert plan["trained_on"] == script.TRAINED_ON


def test_a_command_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="data set 'cifar10' is not in"):
        script.main([str(tmp_path / "it.safetensors"), "--data-dir", str(tmp_path)])
