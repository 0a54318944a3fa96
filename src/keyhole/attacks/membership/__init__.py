"""Membership inference: attacks that score images by how likely a model was trained on them."""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand
from keyhole.registry import Registry

if TYPE_CHECKING:
    from keyhole.attacks.membership.base import MembershipAttack, MembershipProblem
    from keyhole.attacks.membership.lira import Lira
    from keyhole.attacks.membership.loss import LossThreshold
    from keyhole.attacks.membership.shadow import ShadowModels
    from keyhole.attacks.membership.target_training import LabelledImages, TargetTraining

__all__ = [
    "MEMBERSHIP",
    "LabelledImages",
    "Lira",
    "LossThreshold",
    "MembershipAttack",
    "MembershipProblem",
    "ShadowModels",
    "TargetTraining",
]

MEMBERSHIP: Registry["MembershipAttack"] = Registry(
    "membership attack",
    {
        "loss": "keyhole.attacks.membership.loss:LossThreshold",
        "shadow": "keyhole.attacks.membership.shadow:ShadowModels",
        "lira": "keyhole.attacks.membership.lira:Lira",
    },
    base="keyhole.attacks.membership.base:MembershipAttack",
    group="keyhole.membership",
)

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
