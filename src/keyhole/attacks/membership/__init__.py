"""Membership inference: attacks that score images by how likely a model was trained on them."""

from keyhole.attacks.membership.base import MembershipAttack, MembershipProblem
from keyhole.attacks.membership.lira import Lira
from keyhole.attacks.membership.loss import LossThreshold
from keyhole.attacks.membership.shadow import ShadowModels
from keyhole.attacks.membership.target_training import LabelledImages, TargetTraining
from keyhole.registry import Registry

MEMBERSHIP: Registry[MembershipAttack] = Registry(
    "membership attack",
    [LossThreshold, ShadowModels, Lira],
    base=MembershipAttack,
    group="keyhole.membership",
)

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
