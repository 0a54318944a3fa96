"""Membership inference: attacks that score images by how likely a model was trained on them."""

from keyhole.attacks.membership.base import MembershipAttack, Question
from keyhole.attacks.membership.lira import Lira
from keyhole.attacks.membership.loss import LossThreshold
from keyhole.attacks.membership.recipe import Labelled, Recipe
from keyhole.attacks.membership.shadow import ShadowModels
from keyhole.registry import Registry

MEMBERSHIP: Registry[MembershipAttack] = Registry(
    "membership attack", [LossThreshold, ShadowModels, Lira]
)

__all__ = [
    "MEMBERSHIP",
    "Labelled",
    "Lira",
    "LossThreshold",
    "MembershipAttack",
    "Question",
    "Recipe",
    "ShadowModels",
]
