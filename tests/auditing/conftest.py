"""A captured folder and a model that tests of audits share."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from torch import nn

from captures import linked
from keyhole.federation import TrainingPlan, train
from keyhole.models import build


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captured rounds of three clients with an image each."""
    folder = tmp_path_factory.mktemp("trained")
    plan = TrainingPlan(
        model="vit-small", clients=3, images=1, steps=1, batch_size=1, rounds=2, together="no"
    )
    train(plan, out=folder / "run", capture=folder / "seen")
    return folder / "seen"


@pytest.fixture
def seen(trained: Path, tmp_path: Path) -> Path:
    """A copy of the captured folder that a test may damage; tensors are replaced, not written."""
    return Path(shutil.copytree(trained, tmp_path / "seen", copy_function=linked))


@pytest.fixture(scope="module")
def vit() -> nn.Module:
    return build("vit-small", classes=10, channels=1, image_size=8)
