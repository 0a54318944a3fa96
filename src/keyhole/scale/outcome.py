"""What became of a piece, and where pieces can run."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from keyhole.scale.board import Board
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import PieceStore


@dataclass(frozen=True)
class Outcome:
    """A piece that ended.

    Args:
        piece: The piece.
        error: What the user can correct; None: nothing.
        defect: What else its work raised; None: nothing. Without either its result is in the store.
    """

    piece: Piece
    error: str | None = None
    defect: Exception | None = None


class Place(Protocol):
    """Somewhere to run pieces: :class:`Local`, or :class:`Ray`."""

    def run(
        self, pieces: Sequence[Piece], store: PieceStore, machine: Machine, board: Board
    ) -> Generator[Outcome, None, None]:
        """Runs pieces and yields what became of each, as they end.

        Args:
            pieces: Pieces that have no result yet.
            store: Where they keep their results.
            machine: What each may use.
            board: Shows where they stand.
        """
        ...
