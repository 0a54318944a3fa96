"""One setting with one seed as a piece, which any machine can run and any later frontier finds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keyhole.data.sources import SOURCES, is_path
from keyhole.frontier.plan import FrontierPlan
from keyhole.scale.audit_pieces import find_files, spell_once
from keyhole.scale.piece import Piece, Workspace, build_piece
from keyhole.settings import make_settings

WORK = "keyhole.frontier.pieces:run_setting_piece"


def build_setting_piece(plan: FrontierPlan, defense: str, seed: int) -> Piece:
    """The piece that measures one setting with one seed.

    Its values hold nothing about the other settings of the frontier, so that other frontiers find
    its result.

    Args:
        plan: The frontier.
        defense: The clients' defense.
        seed: Seed of all random numbers.
    """
    spelled = spell_once(defense)
    alone = plan.model_copy(
        update={"defenses": (spelled,), "seeds": (seed,), "search": (), "trials": 2}
    )
    folder = plan.data if plan.data not in SOURCES and is_path(plan.data) else None
    names = [plan.model, spelled, *plan.attacks]
    return build_piece(
        WORK,
        alone.to_json(),
        title=f"{spelled}, seed {seed}",
        reads=[folder, plan.weights, *find_files(names)],
        parts=names,
    )


def run_setting_piece(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Trains and attacks in the piece's folder; returns a ``SeedOutcome`` as JSON holds it."""
    from keyhole.device import find_device
    from keyhole.frontier.measuring import measure_setting

    plan = make_settings(FrontierPlan, dict(values))
    [defense], [seed] = plan.defenses, plan.seeds
    outcome = measure_setting(
        plan,
        defense,
        seed,
        space.folder,
        data_dir=space.machine.data_dir,
        device=find_device(space.machine.device),
        progress=space.progress,
    )
    return outcome.to_json()
