"""The pieces of a membership experiment: one for each defense."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyhole.data.sources import SOURCES, is_path
from keyhole.scale.audit_pieces import find_files, spell_all
from keyhole.scale.piece import Piece, Workspace, build_piece
from keyhole.settings import make_settings

if TYPE_CHECKING:
    from keyhole.auditing.membership_plan import MembershipPlan

WORK = "keyhole.scale.membership_pieces:run_membership_piece"


def split_membership(plan: MembershipPlan) -> list[Piece]:
    """The pieces of an experiment. All attacks on one model share what they train."""
    folder = plan.data if plan.data not in SOURCES and is_path(plan.data) else None
    pieces = []
    for defense in spell_all(plan.defenses):
        names = [plan.model, defense, *plan.attacks]
        one = plan.model_copy(
            update={"defenses": (defense,), "attacks": tuple(spell_all(plan.attacks))}
        )
        pieces.append(
            build_piece(
                WORK,
                one.to_json(),
                title=f"membership under {defense}, {plan.model}, seed {plan.seed}",
                reads=[folder, *find_files(names)],
                parts=names,
            )
        )
    return list({piece.key: piece for piece in pieces}.values())


def run_membership_piece(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Runs the experiment in the piece's folder; returns its result as JSON holds it."""
    from keyhole.auditing.membership import infer_membership
    from keyhole.auditing.membership_plan import MembershipPlan
    from keyhole.device import find_device

    result = infer_membership(
        make_settings(MembershipPlan, dict(values)),
        out=space.folder,
        data_dir=space.machine.data_dir,
        device=find_device(space.machine.device),
        progress=space.progress,
    )
    return {**result.to_json(), "run": None}
