"""The experiments of the study: federated trainings, and membership inference."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from keyhole.auditing import MembershipPlan, infer_membership
from keyhole.defenses import DEFENSES
from keyhole.device import find_device
from keyhole_studies.base import Experiment, Study, StudyContext, name_device
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import settings_gap
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
        image_size: Images are scaled to it before that; None: they keep their size.
        seed: In place of the study's.
    """

    data: str
    data_name: str
    network: str
    network_name: str
    settings: FedSgdSettings
    defense: str
    image_size: int | None = None
    seed: int | None = None

    def measure(self, study: Study, context: StudyContext) -> dict[str, Any]:
        device = find_device(context.device)
        seed = study.seed if self.seed is None else self.seed
        context.progress.show(f"{self.name}: {self.settings.rounds} rounds of ten clients")
        _, facts = train_clients(
            self.data,
            self.network,
            DEFENSES.parse(self.defense),
            self.settings,
            seed=seed,
            device=device,
            data_dir=context.data_dir,
            image_size=self.image_size,
        )
        return {
            "piece": self.name,
            "network": self.network,
            "data": self.data,
            "defense": self.defense,
            "seed": seed,
            "device": name_device(device),
            **facts,
        }

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another training or defense."""
        gap = settings_gap(known["recipe"], asdict(self.settings), "training")
        return gap or settings_gap(known, {"defense": self.defense, "network": self.network})

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """Accuracy on clean test images."""
        table = study.published["table-1"].get(self.name)
        paper = self.paper.get("accuracy") if table is None else table[0]
        if paper is not None:
            yield Comparison("accuracy", "points", 100 * known["accuracy"], paper)

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{known['test_images']:,} test images"

    def tell(self, known: dict[str, Any]) -> str:
        defended = known["accuracy_on_defended"]
        also = "" if defended is None else f", {100 * defended:.1f} % as defended"
        return f"accuracy {100 * known['accuracy']:.1f} %{also}"

    def describe(self) -> dict[str, Any]:
        what = f"{self.network_name} on {self.data_name}"
        what += "" if self.image_size is None else f" at {self.image_size} px"
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

    def find_gap(self, known: dict[str, Any], context: StudyContext) -> str:
        """Another plan."""
        now = self.plan.model_dump(mode="json")
        return settings_gap({k: v for k, v in known["plan"].items() if k != "seed"}, now, "plan")

    def compare(self, study: Study, known: dict[str, Any]) -> Iterator[Comparison]:
        """The AUC of an attacker who looks at the loss and does not know the defense."""
        for paper in study.published["figure-7"].get(self.name, ()):
            for one in known["trials"][-1]["inferences"]:
                if one["attack"] == "loss" and one["attacker"] == "naive":
                    yield Comparison("AUC by loss", "points", 100 * one["auc"], 100 * paper)

    def count_measured(self, known: dict[str, Any]) -> str:
        return f"{known.get('members', self.plan.members):,} members"

    def tell(self, known: dict[str, Any]) -> str:
        last = known["trials"][-1]
        auc = f"AUC by {last['inferences'][0]['attack']} {last['inferences'][0]['auc']:.3f}"
        return f"{auc}, gap {100 * last['gap']:.0f} points"

    def describe(self) -> dict[str, Any]:
        plan = self.plan
        who = f"{plan.members} images of {plan.data}, {plan.model}, {plan.epochs} epochs"
        return {"does": f"{', '.join(plan.attacks)} on {who} under {', '.join(plan.defenses)}"}
