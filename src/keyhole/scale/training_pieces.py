"""A federated training as one piece, which continues after its last round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from keyhole.data.sources import SOURCES, is_path
from keyhole.federation.plan import TrainingPlan
from keyhole.scale.audit_pieces import find_files, spell_once
from keyhole.scale.piece import Piece, Workspace, build_piece
from keyhole.settings import make_settings

if TYPE_CHECKING:
    from keyhole.federation import Round

WORK = "keyhole.scale.training_pieces:run_training_piece"
CHECKPOINT = "checkpoint.safetensors"
"""The file of the trained weights in the piece's folder."""


def build_training_piece(plan: TrainingPlan) -> Piece:
    """The piece that trains as a plan says; its folder is the run folder of the training.

    Args:
        plan: What to train.
    """
    spelled = plan.model_copy(update={"defense": spell_once(plan.defense)})
    folder = plan.data if plan.data not in SOURCES and is_path(plan.data) else None
    names = [plan.model, plan.defense]
    return build_piece(
        WORK,
        spelled.to_json(),
        title=f"{plan.model} trains under {spelled.defense}, seed {plan.seed}",
        reads=[folder, plan.weights, *find_files(names)],
        parts=names,
    )


def run_training_piece(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """Trains in the piece's folder; returns the accuracy, the loss and a record of each round."""
    from keyhole.device import find_device
    from keyhole.federation import train

    plan = make_settings(TrainingPlan, dict(values))
    space.progress.begin(plan.rounds)
    reached = 0

    def show(seen: Round) -> None:
        nonlocal reached
        space.progress.advance(seen.number - reached)
        reached = seen.number
        space.progress.show(f"round {seen.number}, accuracy {seen.accuracy:.1%}")

    result = train(
        plan,
        out=space.folder,
        data_dir=space.machine.data_dir,
        device=find_device(space.machine.device),
        watchers=[show],
        keep_updates=False,
    )
    last = result.rounds[-1]
    return {
        "accuracy": last["accuracy"],
        "loss": last["loss"],
        "rounds": list(result.rounds),
        "weights": CHECKPOINT,
    }
