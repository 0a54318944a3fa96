"""An audit of a network that is trained first attacks the trained weights."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file

from keyhole.auditing import Stage
from keyhole.models import build
from keyhole.progress import NullProgress
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.trained_audits import TrainedAudit
from keyhole_studies.training import TrainingSettings


def test_a_network_is_trained_and_then_attacked(tmp_path: Path) -> None:
    stage = Stage(model="mlp", data="digits", defenses=("none",), attacks=("linear",), victims=2)
    settings = TrainingSettings(epochs=2, batch_size=64, lr=3e-3)
    experiment = TrainedAudit("trained-digits", stage, "digits", settings)
    study = Study("one", "One", "nobody's", (experiment,))
    context = StudyContext(tmp_path, None, "cpu", NullProgress(), changes={"victims": 2})
    found = experiment.measure(study, context)
    assert found["accuracy"] > 0.6
    assert found["trained_on"] == "digits"
    assert found["rows"]["linear"]["metrics"]["read"]["mean"] == 1.0
    assert experiment.find_gap(found, context) == ""
    weights = load_file(tmp_path / "trained-digits-weights.safetensors")
    fresh = build("mlp", classes=10, channels=1, image_size=8).state_dict()
    assert weights.keys() == fresh.keys()
    assert not any(weights[name].equal(fresh[name]) for name in weights)
