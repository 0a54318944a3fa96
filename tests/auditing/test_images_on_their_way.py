"""Defenses on images in the audit: what is seen on the line, and in updates, and undone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from keyhole.auditing import Stage, audit
from keyhole.auditing.attack_setting import build_settings
from keyhole.auditing.recording_defense import RecordingDefense
from keyhole.auditing.resolve import resolve_stage
from keyhole.defenses import ClientSide, Csvar, NoDefense
from keyhole.seeds import generator

Command = Callable[..., tuple[int, str, str]]


def list_attackers(stage: Stage) -> list[list[tuple[str, str]]]:
    found = build_settings(resolve_stage(stage, seed=0))
    return [[(run.attack.name, run.attacker.value) for run in setting.runs] for setting in found]


def test_who_attacks_images_that_travel() -> None:
    """Whatever reads images is tried by one who undoes the defense as well; nobody taps vanilla."""
    none, csvar = list_attackers(Stage(model="mlp", data="faces", defenses=("none", "csvar")))
    assert none == [("linear", "naive"), ("cocktail-party", "naive"), ("labels", "naive")]
    assert csvar == [
        ("linear", "naive"),
        ("linear", "adaptive"),
        ("cocktail-party", "naive"),
        ("cocktail-party", "adaptive"),
        ("labels", "naive"),
        ("intercept", "paper"),
        ("intercept-undo", "adaptive"),
    ]


def test_updates_are_inverted_though_images_can_be_seen_on_their_way() -> None:
    (found,) = list_attackers(Stage(model="lenet", data="faces", defenses=("csvar",)))
    assert ("ig", "naive") in found
    assert ("ig", "adaptive") in found
    assert ("intercept-undo", "adaptive") in found
    assert len(found) == len(set(found))


def test_an_attack_on_the_line_is_refused_where_no_image_travels() -> None:
    stage = Stage(
        model="mlp", data="faces", defenses=("gaussian", "csvar"), attacks=("intercept", "linear")
    )
    noisy, shuffled = build_settings(resolve_stage(stage, seed=0))
    assert [s.why for s in noisy.skipped] == ["under this defense no image leaves the client"]
    assert not shuffled.skipped


def test_a_recording_defense_keeps_the_images_and_changes_nothing() -> None:
    images = torch.rand(2, 1, 25, 25)
    recording = RecordingDefense(Csvar())
    shown = recording.on_images(images, ClientSide(generator(0)))
    assert torch.equal(shown, Csvar().on_images(images, ClientSide(generator(0))))
    assert torch.equal(recording.recorded[0], shown)
    shown.zero_()
    assert recording.recorded[0].any()
    assert recording.spec == Csvar().spec
    assert RecordingDefense(NoDefense()).recorded == []


def test_noise_is_taken_off_and_more_versions_take_off_more() -> None:
    found = {}
    for versions in (1, 5):
        result = audit(
            model="mlp",
            data="faces",
            defenses=["image-noise"],
            attacks=["linear", "intercept", "intercept-undo"],
            victims=3,
            repeats=versions,
        )
        found[versions] = {(f.attack, f.attacker): f.metrics["psnr"].mean for f in result.findings}
    one, five = found[1], found[5]
    assert one["linear", "naive"] == pytest.approx(one["intercept", "paper"], abs=0.1)
    assert one["intercept-undo", "adaptive"] > one["intercept", "paper"] + 2
    assert five["intercept-undo", "adaptive"] > one["intercept-undo", "adaptive"] + 2
    assert five["linear", "adaptive"] > one["linear", "adaptive"] + 2


def test_the_puzzle_is_solved_wherever_the_shuffled_image_is_seen() -> None:
    """The closed form reads the shuffled image exactly, and so do those on the line."""
    result = audit(
        model="mlp",
        data="photos",
        image_size=64,
        defenses=["csvar"],
        attacks=["linear", "intercept", "intercept-undo"],
        victims=2,
    )
    found = {(f.attack, f.attacker): f for f in result.findings}
    as_seen = found["intercept", "paper"].metrics["ssim"].mean
    solved = found["intercept-undo", "adaptive"].metrics["ssim"].mean
    assert solved > as_seen + 0.1
    read = found["linear", "adaptive"].metrics["ssim"].mean
    assert read == pytest.approx(solved, abs=0.05)
    assert found["linear", "naive"].knowledge["defense"] is None
    assert found["intercept-undo", "adaptive"].knowledge["intercepted"] is True
    assert found["linear", "adaptive"].knowledge["intercepted"] is False


def test_what_was_read_of_the_images_on_their_way_is_said(keyhole: Command, tmp_path: Path) -> None:
    code, out, err = keyhole(
        *("audit", "--model", "mlp", "--data", "faces", "--defense", "image-noise(sigma=5)"),
        *("--attack", "intercept", "--victims", "2", "--out", str(tmp_path / "run")),
    )
    assert code == 0, err
    assert "from the images on their way" in " ".join(out.split())
