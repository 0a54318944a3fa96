"""MJP in the audit: a global model of its own, attackers who know it, several updates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from keyhole.auditing import Plan, Stage, audit, run_plan
from keyhole.auditing.attack_setting import build_settings
from keyhole.auditing.resolve import resolve_stage
from keyhole.defenses import Mjp
from keyhole.errors import BadUpdate
from keyhole.federation import TrainingPlan, train
from keyhole.models import build
from keyhole.models.jigsaw import has_puzzle

Command = Callable[..., tuple[int, str, str]]


def test_each_defense_has_the_global_model_it_needs() -> None:
    stage = Stage(model="vit-small", data="digits", image_size=16, defenses=("none", "mjp"))
    plain, puzzled = build_settings(resolve_stage(stage, seed=0))
    assert not has_puzzle(plain.model)
    assert has_puzzle(puzzled.model)
    assert [run.attack.name for run in plain.runs] == ["patch-lstsq", "labels"]
    known = {(run.attack.name, run.attacker.value) for run in puzzled.runs}
    assert ("mjp-span", "adaptive") in known
    assert all(s.attack != "mjp-span" for s in plain.skipped)


def test_the_attacker_who_knows_the_puzzle_reads_more() -> None:
    result = audit(
        model="vit-small",
        data="photos",
        image_size=32,
        defenses=["mjp(gamma=0.2)"],
        attacks=["patch-lstsq", "mjp-span"],
        victims=3,
    )
    naive, adaptive = result.findings
    assert (naive.attack, adaptive.attack) == ("patch-lstsq", "mjp-span")
    assert adaptive.metrics["ssim"].mean > naive.metrics["ssim"].mean + 0.05
    assert naive.knowledge["defense"] is None
    assert "mjp" in adaptive.knowledge["defense"]
    assert adaptive.diagnostics["covered"] > 0


def test_several_updates_read_what_one_does_not() -> None:
    def seen(repeats: int) -> float:
        result = audit(
            model="vit-small",
            data="photos",
            image_size=32,
            defenses=["mjp(gamma=0.2)"],
            attacks=["mjp-span(rounds=1, turns=5)"],
            victims=1,
            repeats=repeats,
        )
        (finding,) = result.findings
        assert finding.knowledge["rounds"] == repeats
        assert finding.diagnostics["updates"] == repeats
        return float(finding.metrics["psnr"].mean)

    assert seen(6) > 60 > seen(1)


def test_a_puzzle_that_covers_nothing_is_told(keyhole: Command) -> None:
    words = "mjp covers nothing: 0.1 of 4 patches is less than one"
    options = ("--model", "vit-small", "--data", "digits")
    few = ("--clients", "2", "--images", "4")
    code, out, _ = keyhole("audit", *options, "--defense", "mjp", "--victims", "1")
    assert code == 0
    assert words in " ".join(out.split())
    code, _, err = keyhole("train", *options, *few, "--defense", "mjp", "--rounds", "1")
    assert code == 0
    assert words in err


def test_swin_and_resnet_are_told_what_to_do(keyhole: Command) -> None:
    options = ("--data", "photos", "--image-size", "32", "--defense", "mjp", "--victims", "1")
    code, _, err = keyhole("audit", "--model", "resnet18", *options)
    assert code == 2
    assert err.count("\n") == 1
    assert "level='image'" in err


def weights_of(model: torch.nn.Module, path: Path) -> Path:
    from safetensors.torch import save_file

    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, path)
    return path


def test_a_checkpoint_that_mjp_trained_is_audited_with_and_without_it(tmp_path: Path) -> None:
    model = Mjp().prepare_model(build("vit-small", classes=10, channels=1, image_size=16, seed=5))
    with torch.no_grad():
        model.get_parameter("puzzle.unknown").fill_(2.0)
    path = weights_of(model, tmp_path / "weights.safetensors")
    stage = Stage(
        model="vit-small", data="digits", image_size=16, weights=path, defenses=("none", "mjp")
    )
    plain, puzzled = build_settings(resolve_stage(stage, seed=0))
    assert not has_puzzle(plain.model)
    assert torch.equal(
        plain.model.get_parameter("pos_embed"), puzzled.model.get_parameter("pos_embed")
    )
    assert bool((puzzled.model.get_parameter("puzzle.unknown") == 2.0).all())


def test_another_variants_checkpoint_is_refused(tmp_path: Path) -> None:
    model = Mjp(dal="ln").prepare_model(build("vit-small", classes=10, channels=1, image_size=16))
    path = weights_of(model, tmp_path / "weights.safetensors")
    stage = Stage(model="vit-small", data="digits", image_size=16, weights=path, defenses=("mjp",))
    with pytest.raises(BadUpdate, match="another model's weights"):
        build_settings(resolve_stage(stage, seed=0))


def test_what_a_server_captured_under_mjp_is_read(tmp_path: Path) -> None:
    plan = TrainingPlan(
        data="digits",
        image_size=16,
        model="vit-small",
        defense="mjp(gamma=0.2)",
        clients=2,
        rounds=1,
        images=1,
        steps=1,
        lr=1.0,
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "captured")
    stage = Stage(
        model="vit-small",
        data="digits",
        attacks=("mjp-span(rounds=4, turns=50)",),
        captured=tmp_path / "captured",
        victims=2,
    )
    result = run_plan(Plan(stage=(stage,)))
    (finding,) = result.findings
    assert finding.attacker == "adaptive"
    assert finding.defense["parameters"]["gamma"] == 0.2
    assert finding.diagnostics["covered"] == 3
    assert finding.diagnostics["residual"] < 1e-4
    assert finding.metrics["ssim"].mean > 0.3


def test_captured_clients_cannot_be_asked_again(keyhole: Command, tmp_path: Path) -> None:
    options = ("--captured", str(tmp_path), "--model", "vit-small", "--data", "digits")
    code, _, err = keyhole("audit", *options, "--repeats", "3")
    assert code == 2
    assert err.startswith("keyhole: repeats: ")
    assert err.count("\n") == 1
