"""``keyhole.audit``: what it refuses in a line, and captured folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import keyhole
from keyhole.federation import TrainingPlan, train


def make_model(classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * image_size[0] * image_size[1], classes))


def test_a_function_that_makes_a_model_is_refused_with_what_to_do() -> None:
    with pytest.raises(keyhole.KeyholeError, match="call it first, or name its place"):
        keyhole.audit(model=make_model, data="digits", attacks=["linear"])  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    plan = TrainingPlan(
        model="vit-small",
        clients=2,
        rounds=1,
        images=1,
        steps=1,
        defense="gaussian(sigma=1e-6)",
    )
    train(plan, out=folder / "train", capture=folder / "captured")
    return folder / "captured"


def test_a_captured_folder_is_attacked_as_on_the_command_line(captured: Path) -> None:
    result = keyhole.audit(
        model="vit-small", data="digits", attacks=["patch-lstsq"], captured=str(captured)
    )
    (verdict,) = result.verdicts
    assert verdict.words.startswith("broken by patch-lstsq")
    assert "of 2 images read" in verdict.words
    assert verdict.defense["name"] == "gaussian"  # as its clients claim
    assert {finding.attacker for finding in result.findings} == {"naive", "adaptive"}


def test_a_captured_folder_needs_a_model_by_name(captured: Path) -> None:
    own = make_model(10, 1, (8, 8))
    with pytest.raises(keyhole.KeyholeError, match="give model and data by name"):
        keyhole.audit(model=own, data="digits", captured=str(captured))
