"""Plans as independent pieces: run here, on Ray or by shards, found again, and put together.

Names are imported when they are first used: pieces can be listed without torch.
"""

from typing import TYPE_CHECKING

from keyhole.lazy import import_on_demand

if TYPE_CHECKING:
    from keyhole.scale.local import Local
    from keyhole.scale.on_ray import Ray
    from keyhole.scale.piece import Machine, Piece, Workspace, build_piece
    from keyhole.scale.piece_store import PieceStore, open_store
    from keyhole.scale.run import FinishedPiece, PiecesFailed, run_pieces
    from keyhole.scale.split import split

__all__ = [
    "FinishedPiece",
    "Local",
    "Machine",
    "Piece",
    "PieceStore",
    "PiecesFailed",
    "Ray",
    "Workspace",
    "build_piece",
    "open_store",
    "run_pieces",
    "split",
]

if not TYPE_CHECKING:  # else any name would pass for one of this package
    __getattr__, __dir__ = import_on_demand(__name__)
