"""Experiments that are audits of networks which are trained first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from keyhole.atomic import write_tensors
from keyhole.device import find_device
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import Study, StudyContext
from keyhole_studies.resident_data import load_resident_data, measure_accuracy
from keyhole_studies.training import TrainingSettings
from keyhole_studies.victim import prepare_victim


@dataclass(frozen=True)
class TrainedAudit(AuditExperiment):
    """An audit of a network that was trained first, without dropout.

    Args:
        trained_on: The data set.
        settings: How the network is trained.
    """

    trained_on: str
    settings: TrainingSettings

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device, seed = find_device(context.device), study.seed
        context.progress.show(f"{self.name}: {self.stage.model} learns {self.trained_on}")
        model = prepare_victim(
            self.trained_on,
            self.settings,
            seed=seed,
            device=device,
            data_dir=context.data_dir,
            network=self.stage.model,
        )
        data = load_resident_data(self.trained_on, context.data_dir, seed, device)
        accuracy = measure_accuracy(model, data.test, data.test_indices)
        path = context.runs / f"{self.name}-weights.safetensors"
        write_tensors(path, {k: v.cpu().contiguous() for k, v in model.state_dict().items()})
        stage = {"weights": path, "checkpoint_epoch": self.settings.epochs}
        audit = replace(self, stage=self.stage.model_copy(update=stage))
        found = AuditExperiment.measure(audit, study, context)
        return {**found, "trained_on": self.trained_on, "accuracy": accuracy}
