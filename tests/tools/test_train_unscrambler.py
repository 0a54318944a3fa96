"""The script that trains the network of the jigsaw solver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.attacks.jigsaw.learned import load_unscrambler
from keyhole.attacks.jigsaw.learned.shipped import UNSCRAMBLERS
from keyhole.data import load
from keyhole.update import read_safetensors
from keyhole_studies.unscrambler_training.public import DIGITS, HELD_OUT, PHOTOS, to_grey
from keyhole_studies.unscrambler_training.puzzles import PublicImages
from scripts import load_script

script = load_script("tools/train_unscrambler.py")


def test_nothing_it_was_chosen_by_was_learnt_from() -> None:
    assert not set(HELD_OUT) & (set(PHOTOS) | set(DIGITS))


def test_a_command_trains_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = to_grey(load("photos", image_size=32).pixels([0, 1]))

    def load_few(data_dir: str | None, most: int | None) -> list[PublicImages]:
        return [PublicImages(photos[:most])]

    monkeypatch.setattr(script, "load_public_images", load_few)
    small = "--steps 2 --puzzles 4 --batch-size 2 --width 8 --depth 1 --most 1 --seed 5"
    script.main([str(tmp_path / "it.safetensors"), *small.split()])
    assert "step 2 of 2" in capsys.readouterr().out
    plan = json.loads(read_safetensors(tmp_path / "it.safetensors")[1][UNSCRAMBLERS.kind])
    assert (plan["steps"], plan["seed"], plan["width"]) == (2, 5, 8)
    assert load_unscrambler(tmp_path / "it.safetensors").depth == 1


def test_a_command_without_data_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="data set 'mnist' is not in"):
        script.main([str(tmp_path / "it.safetensors"), "--data-dir", str(tmp_path)])


def test_the_defaults_are_those_of_the_shipped_file() -> None:
    asked = script.parse_arguments(["out"])
    folder = Path(script.__file__).parents[1] / "src/keyhole/attacks/jigsaw/learned/weights"
    plan = json.loads(read_safetensors(folder / "regions8.safetensors")[1][UNSCRAMBLERS.kind])
    assert (asked.steps, asked.seed) == (plan["steps"], plan["seed"])
    assert (asked.width, asked.depth) == (plan["width"], plan["depth"])
    assert plan["trained_on"] == script.TRAINED_ON
