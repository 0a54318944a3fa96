"""Plans as independent pieces: run here, on Ray or by shards, found again, and put together.

Names are imported when they are first used: pieces can be listed without torch.
"""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.scale.audit_run import run_sweep
    from keyhole.scale.local import Local
    from keyhole.scale.membership_run import run_membership
    from keyhole.scale.merge import merge_runs
    from keyhole.scale.on_ray import Ray
    from keyhole.scale.outcome import Place
    from keyhole.scale.piece import Machine, Piece, Workspace, build_piece
    from keyhole.scale.piece_store import PieceStore, open_store
    from keyhole.scale.run import FinishedPiece, PiecesFailed, run_pieces
    from keyhole.scale.shard import Shard
    from keyhole.scale.split import split
    from keyhole.scale.training_run import run_trainings

__all__ = [
    "FinishedPiece",
    "Local",
    "Machine",
    "Piece",
    "PieceStore",
    "PiecesFailed",
    "Place",
    "Ray",
    "Shard",
    "Workspace",
    "build_piece",
    "merge_runs",
    "open_store",
    "run_membership",
    "run_pieces",
    "run_sweep",
    "run_trainings",
    "split",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
