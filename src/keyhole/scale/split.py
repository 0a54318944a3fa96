"""Divides a plan into its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keyhole.auditing.plan import Plan
from keyhole.federation.plan import TrainingPlan
from keyhole.scale.audit_pieces import split_audit
from keyhole.scale.membership_pieces import split_membership
from keyhole.scale.piece import Piece
from keyhole.scale.training_pieces import build_training_piece

if TYPE_CHECKING:
    from keyhole.auditing.membership_plan import MembershipPlan


def split(plan: Plan | TrainingPlan | MembershipPlan) -> list[Piece]:
    """Divides a plan into pieces that can be run in any order, each on any machine.

    A training is one piece. An audit has one for each stage, defense and attack, a membership
    experiment one for each defense.

    Args:
        plan: The plan. Lists in its names stand for one name for each value.
    """
    if isinstance(plan, Plan):
        return split_audit(plan)
    if isinstance(plan, TrainingPlan):
        return [build_training_piece(plan)]
    return split_membership(plan)
