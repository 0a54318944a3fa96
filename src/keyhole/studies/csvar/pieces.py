"""What is run for the study: federated trainings, membership inference, and audits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from keyhole.audit import Stage, find_device
from keyhole.audit.membership import MembershipPlan, infer_membership
from keyhole.defenses import DEFENSES
from keyhole.studies.base import AuditPiece, Piece, Setting, Study
from keyhole.studies.csvar import paper
from keyhole.studies.csvar.generation import SCENERIES, GanPiece
from keyhole.studies.csvar.training import RECIPES, train

CURVE = (1, 2, 4, 8, 15, 30, 60)
"""Epochs after which the overfitting client's model is attacked, Figure 1."""
VERSIONS = (1, 5)
WHY = {
    "coarse": "csvar(block=4)",
    "together": "csvar(channels='together')",
    "coarse-together": "csvar(block=4, channels='together')",
}
"""CSVAR without one of its parts or two, of which each may cost accuracy."""


@dataclass(frozen=True)
class TablePiece(Piece):
    """One cell of Table I: one network trained by ten clients on one data set."""

    data: str
    network: str
    defense: str

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        recipe = RECIPES[self.data]
        device = find_device(setting.device)
        setting.progress.show(f"{self.name}: {recipe.rounds} rounds of ten clients")
        _, facts = train(
            self.data,
            self.network,
            DEFENSES.parse(self.defense),
            recipe,
            seed=study.seed,
            device=device,
            data_dir=setting.data_dir,
        )
        about = {"piece": self.name, "network": self.network, "data": self.data}
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        return {**about, "defense": self.defense, "seed": study.seed, "device": name, **facts}

    def about(self) -> dict[str, Any]:
        rounds = RECIPES[self.data].rounds
        what = f"{paper.NETWORKS[self.network]} on {paper.DATA[self.data]}"
        return {"does": f"trains {what} for {rounds} rounds under {self.defense}"}


@dataclass(frozen=True)
class MembershipPiece(Piece):
    """Who was among the images of a client that has few."""

    plan: MembershipPlan

    def measure(self, study: Study, setting: Setting) -> dict[str, Any]:
        device = find_device(setting.device)
        found = infer_membership(
            self.plan.model_copy(update={"seed": study.seed}),
            data_dir=setting.data_dir,
            device=device,
            progress=setting.progress,
        )
        name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
        return {"piece": self.name, "device": name, **found.to_json()}

    def about(self) -> dict[str, Any]:
        plan = self.plan
        who = f"{plan.members} images of {plan.data}, {plan.model}, {plan.epochs} epochs"
        return {"does": f"{', '.join(plan.attacks)} on {who} under {', '.join(plan.defenses)}"}


def table() -> Iterator[TablePiece]:
    """Table I."""
    for data, network, defense in paper.TABLE_1:
        name = f"table-{data.removesuffix('-faces')}-{network}-{defense}"
        yield TablePiece(name, data, network, defense, figure="T1")


def why() -> Iterator[TablePiece]:
    """One row of Table I again: what of CSVAR costs accuracy."""
    for name, defense in WHY.items():
        yield TablePiece(f"why-{name}", "cifar10", "mobilenet", defense, figure="T1")


def membership() -> Iterator[MembershipPiece]:
    """Figures 1 and 7: a client with 500 images, and what its model gives away."""
    few = MembershipPlan(data="cifar10", model="lenet", members=500, epochs=60, lr=0.003)
    curve = few.model_copy(update={"at": CURVE, "attacks": ("loss",)})
    yield MembershipPiece("overfitting", curve, figure="F1")
    for defense in paper.DEFENSES:
        plan = few.model_copy(update={"defenses": (defense,), "shadows": 16})
        yield MembershipPiece(f"membership-{defense}", plan, figure="F7")


def generated() -> Iterator[GanPiece]:
    """Figure 6."""
    for name, scenery in SCENERIES.items():
        for defense in paper.DEFENSES:
            yield GanPiece(f"gan-{name}-{defense}", scenery, defense, figure="F6")
            if defense != "none":
                yield GanPiece(f"gan-{name}-{defense}-known", scenery, defense, True, figure="F6")


def audits() -> Iterator[AuditPiece]:
    """Images on their way, and images read out of updates; one version and five."""
    seen = ("intercept", "intercept-undo")
    for name, model, data, victims in (
        ("cifar10", "mlp", "dia-cifar10", 64),
        ("imagenet", "lenet", "imagenet-sample", 32),
        ("faces", "lenet", "orl-faces", 32),
    ):
        for defense in paper.DEFENSES[1:]:
            for versions in VERSIONS:
                attacks = ("linear", *seen) if model == "mlp" else seen
                stage = Stage(
                    model=model,
                    data=data,
                    defenses=(defense,),
                    attacks=attacks,
                    victims=victims,
                    repeats=versions,
                )
                yield AuditPiece(f"see-{name}-{defense}-v{versions}", stage, figure="F5")
    for defense in paper.DEFENSES:
        stage = Stage(
            model="lenet",
            data="dia-cifar10",
            defenses=(defense,),
            attacks=("ig(iterations=2000)",),
            victims=16,
        )
        yield AuditPiece(f"invert-{defense}", stage, figure="F5")


def all_pieces() -> tuple[Piece, ...]:
    return (*table(), *why(), *membership(), *generated(), *audits())
