"""The experiments of the study: federated trainings, and membership inference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keyhole.auditing import MembershipPlan, infer_membership
from keyhole.defenses import DEFENSES
from keyhole.device import find_device
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.csvar.training import FedSgdSettings, train_clients


@dataclass(frozen=True)
class AccuracyExperiment(Experiment):
    """One cell of Table I: one network trained by ten clients on one data set.

    Args:
        data: The data set.
        data_name: What the paper calls it.
        network: A name of :data:`~keyhole_studies.csvar.networks.NETWORKS`.
        network_name: What the paper calls it.
        settings: How clients and server train.
        defense: What clients do to their images.
    """

    data: str
    data_name: str
    network: str
    network_name: str
    settings: FedSgdSettings
    defense: str

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        context.progress.show(f"{self.name}: {self.settings.rounds} rounds of ten clients")
        _, facts = train_clients(
            self.data,
            self.network,
            DEFENSES.parse(self.defense),
            self.settings,
            seed=study.seed,
            device=device,
            data_dir=context.data_dir,
        )
        return {
            "piece": self.name,
            "network": self.network,
            "data": self.data,
            "defense": self.defense,
            "seed": study.seed,
            "device": name_device(device),
            **facts,
        }

    def describe(self) -> dict[str, Any]:
        what = f"{self.network_name} on {self.data_name}"
        return {"does": f"trains {what} for {self.settings.rounds} rounds under {self.defense}"}


@dataclass(frozen=True)
class MembershipExperiment(Experiment):
    """Membership inference on one client's model.

    Args:
        plan: Data, model, defense and attacks; its seed is the study's.
    """

    plan: MembershipPlan

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        found = infer_membership(
            self.plan.model_copy(update={"seed": study.seed}),
            data_dir=context.data_dir,
            device=device,
            progress=context.progress,
        )
        return {"piece": self.name, "device": name_device(device), **found.to_json()}

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        who = f"{plan.members} images of {plan.data}, {plan.model}, {plan.epochs} epochs"
        return {"does": f"{', '.join(plan.attacks)} on {who} under {', '.join(plan.defenses)}"}
