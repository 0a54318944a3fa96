from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import keyhole as library
from keyhole.attacks.analytic.linear import LinearLeak
from keyhole.auditing import AuditResult, Plan, Stage, read_plan, run_plan
from keyhole.data import load
from keyhole.data.image_set import normalise
from keyhole.data.normalisation import common_normalisations
from keyhole.errors import BadValue
from keyhole.federation import TrainingPlan, train
from keyhole.federation.capture import CaptureWriter, Reply
from keyhole.models import build

Keyhole = Callable[..., tuple[int, str, str]]

normalising = importlib.import_module("keyhole.auditing.client_normalisation")
digits = load("digits")
HALF, RAW = ((0.5,), (0.5,)), ((0.0,), (1.0,))
IMAGES = (3, 10, 17)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Captures of three clients with an image each, by how these were normalised."""
    made: dict[object, Path] = {}

    def capture(by: tuple[tuple[float, ...], tuple[float, ...]], **about: Any) -> Path:
        key = (by, *about.items())
        if key not in made:
            made[key] = tmp_path_factory.mktemp("seen")
            write_capture(made[key], by, about)
        return made[key]

    return capture


def write_capture(root: Path, by: Any, about: dict[str, Any]) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8, seed=0)
    replies = []
    for node, image in enumerate(IMAGES):
        model.zero_grad()
        inputs = normalise(digits.images([image]), *by)
        torch.nn.functional.cross_entropy(model(inputs), digits.labels[[image]]).backward()
        change = {n: -p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        replies.append(Reply(str(node), change, 1))
    writer = CaptureWriter(root, about=about)
    writer.write_round(1, model.state_dict(), replies, config={"lr": 1.0, "batch-size": 1})
    writer.write_truth("digits", {str(node): [image] for node, image in enumerate(IMAGES)})


def audited(seen: Path, **values: Any) -> AuditResult:
    stage = Stage(data="digits", captured=seen, attacks=("linear",), **values)
    return run_plan(Plan(stage=(stage,)))


def psnr(result: AuditResult) -> float:
    return min(result.findings[0].metrics["psnr"].per_image)


def notes(result: AuditResult) -> str:
    return "\n".join(result.findings[0].notes)


@pytest.mark.parametrize("by", [(digits.mean, digits.std), HALF, RAW], ids=["own", "half", "raw"])
def test_an_exact_attack_reads_by_whatever_normalisation_clients_used(
    seen: Callable[..., Path], by: Any
) -> None:
    result = audited(seen(by))
    assert psnr(result) > 100
    assert result.verdicts[0].status == "broken"
    assert "is not known: the data set's own --mean 0.305" in notes(result)
    assert "pass --mean and --std" in notes(result)
    said = "better than the assumed" in notes(result)
    assert said is (by != (digits.mean, digits.std))


def test_the_attacker_is_as_sure_by_a_fitted_normalisation(seen: Callable[..., Path]) -> None:
    assert min(audited(seen(HALF)).findings[0].confidence) > 0.99


@pytest.mark.parametrize(
    ("defense", "times"), [("none", 1 + len(common_normalisations(1))), ("gaussian(sigma=0.01)", 1)]
)
def test_grey_levels_are_not_sought_in_updates_that_a_defense_changed(
    seen: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, defense: str, times: int
) -> None:
    """Noise hides them, and each trial costs as much as the attack itself."""
    tried: list[object] = []
    real = LinearLeak.on_many
    monkeypatch.setattr(LinearLeak, "on_many", lambda *a: tried.append(a) or real(*a))
    monkeypatch.setattr(normalising, "are_grey_levels", lambda pixels: False)
    result = audited(seen((digits.mean, digits.std)), defenses=(defense,))
    assert len(tried) == times * len(result.findings)


def test_what_the_user_says_is_used_and_not_doubted(seen: Callable[..., Path]) -> None:
    right = audited(seen(RAW), mean=0, std=1)
    assert psnr(right) > 100
    wrong = audited(seen(RAW), mean=digits.mean, std=digits.std)
    assert psnr(wrong) < 25
    for result in (right, wrong):
        assert "assumed" not in notes(result)
    assert right.findings[0].recipe["mean"] == [0.0]
    assert right.findings[0].key != wrong.findings[0].key


def test_what_was_recorded_is_used_and_the_user_overrides_it(seen: Callable[..., Path]) -> None:
    folder = seen(HALF, mean="0.5", std="0.5")
    result = audited(folder)
    assert psnr(result) > 100
    assert "assumed" not in notes(result)
    assert not result.findings[0].recipe["assumed_normalisation"]
    assert psnr(audited(folder, mean=0, std=1)) < 25


@pytest.mark.parametrize(
    "bad", [{"mean": "0.5"}, {"mean": "a", "std": "0"}, {"mean": 0, "std": "1,1,1"}]
)
def test_a_record_that_cannot_be_used_is_said_and_left(
    seen: Callable[..., Path], bad: dict[str, Any]
) -> None:
    result = audited(seen(RAW, **bad))
    assert "that were captured cannot be used" in notes(result)
    assert psnr(result) > 100


def test_without_truth_the_right_normalisation_is_found_as_well(
    seen: Callable[..., Path], tmp_path: Path
) -> None:
    nothing = tmp_path / "truth.json"
    nothing.write_text('{"clients": {}}')
    result = audited(seen(RAW), truth=nothing)
    assert result.verdicts[0].status == "not scored"
    assert "fits raw [0, 1]" in notes(result)


def test_a_training_records_its_normalisation_and_an_audit_uses_it(tmp_path: Path) -> None:
    plan = TrainingPlan(
        model="vit-small", clients=2, images=1, steps=1, rounds=1, together="no", mean=0, std=1
    )
    train(plan, out=tmp_path / "run", capture=tmp_path / "seen")
    about = json.loads((tmp_path / "seen" / "capture.json").read_text())["about"]
    assert (about["mean"], about["std"]) == ("0.0", "1.0")
    stage = Stage(
        model="vit-small", data="digits", captured=tmp_path / "seen", attacks=("patch-lstsq",)
    )
    result = run_plan(Plan(stage=(stage,)))
    assert psnr(result) > 60
    assert "assumed" not in notes(result)


def test_the_command_line_takes_mean_and_std(seen: Callable[..., Path], keyhole: Keyhole) -> None:
    command = ("audit", "--data", "digits", "--captured", str(seen(RAW)), "--attack", "linear")
    code, out, _ = keyhole(*command, "--mean", "0", "--std", "1", "--json")
    assert code == 0
    (finding,) = json.loads(out)["findings"]
    assert (finding["recipe"]["mean"], finding["recipe"]["std"]) == ([0.0], [1.0])
    code, out, _ = keyhole(*command)
    assert code == 0
    assert "note: how clients normalise their images is not known" in " ".join(out.split())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--mean", "0.5"), "mean is given without std"),
        (("--mean", "0.5", "--std", "0"), "std: give one number above 0"),
        (("--mean", "nan", "--std", "1"), "mean: give one number"),
        (("--mean", "0.5,0.5", "--std", "0.5"), "mean: 2 numbers for images of 1 channel"),
    ],
)
def test_bad_values_are_one_line(keyhole: Keyhole, options: tuple[str, ...], words: str) -> None:
    for command in ("audit", "train"):
        code, _, err = keyhole(command, "--data", "digits", *options)
        assert (code, len(err.splitlines())) == (2, 1)
        assert words in err


def test_a_plan_file_takes_mean_and_std(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[[stage]]\ndata = "photos"\nmean = [0.5, 0.4, 0.3]\nstd = 0.5\n')
    (stage,) = read_plan(path).stage
    assert (stage.mean, stage.std) == ((0.5, 0.4, 0.3), (0.5,))


def test_python_takes_mean_and_std() -> None:
    result = library.audit(data="digits", attacks=["linear"], victims=1, mean=0.5, std=[0.25])
    assert result.findings[0].recipe["std"] == [0.25]
    assert psnr(result) > 100
    with pytest.raises(BadValue, match="std is given without mean"):
        library.audit(data="digits", std=0.5)


def test_that_a_model_of_the_users_is_fed_as_the_data_set_says_is_noted(tmp_path: Path) -> None:
    model = build("mlp", classes=10, channels=1, image_size=8, seed=1)
    save_file(model.state_dict(), tmp_path / "w.safetensors")
    weights = {"weights": tmp_path / "w.safetensors"}
    common: Any = {"data": "digits", "attacks": ["linear"], "victims": 1}
    for own in (weights, {"model": model}):
        assert "own --mean 0.305" in notes(library.audit(**common, **own))
        assert "assumed" not in notes(library.audit(**common, **own, mean=0.5, std=0.5))
    assert "assumed" not in notes(library.audit(**common))
