"""Runs pieces that have no result yet, wherever that is to be."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.progress import NullProgress, Progress
from keyhole.scale.board import Board
from keyhole.scale.local import Local
from keyhole.scale.outcome import Outcome, Place
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import PieceStore

NAMED = 3
"""Failed pieces that an error names."""


class PiecesFailed(KeyholeError):
    """Some pieces could not be run, for reasons that the user can correct; all others were."""

    def __init__(self, failed: Sequence[Outcome], total: int) -> None:
        self.failed = tuple(failed)
        named = "; ".join(f"{each.piece.title}: {each.error}" for each in failed[:NAMED])
        more = f"; and {len(failed) - NAMED} more" if len(failed) > NAMED else ""
        count = "1 piece" if total == 1 else f"{len(failed)} of {total} pieces"
        super().__init__(f"{count} failed, the results of all others are kept: {named}{more}")


def raise_first_defect(failed: Sequence[Outcome], total: int) -> None:
    """Raises what no user can correct, with its traceback; does nothing where there is none."""
    for outcome in failed:
        if outcome.defect is not None:
            outcome.defect.add_note(
                f"This was raised by the piece {outcome.piece.title or outcome.piece.key}; "
                f"{len(failed)} of {total} pieces failed, the results of all others are kept."
            )
            raise outcome.defect


@dataclass(frozen=True)
class FinishedPiece:
    """A piece that has a result, which is read when it is asked for.

    Args:
        piece: The piece.
        store: Where its result is.
    """

    piece: Piece
    store: PieceStore

    @property
    def result(self) -> dict[str, Any]:
        """What its work returned."""
        found: dict[str, Any] = self.store.read(self.piece)["result"]
        return found

    @property
    def cost(self) -> dict[str, Any]:
        """What the work took: ``seconds``, ``peak_mb``, and the ``host``."""
        return dict(self.store.read(self.piece).get("cost", {}))

    @property
    def folder(self) -> Path:
        """What its work wrote, to read from."""
        return self.store.fetch(self.piece)


def run_pieces(
    pieces: Sequence[Piece],
    store: PieceStore,
    *,
    on: Place | None = None,
    machine: Machine | None = None,
    progress: Progress | None = None,
) -> list[FinishedPiece]:
    """Runs the pieces that have no result yet, and returns all of them in their order.

    A piece that fails stops no other, for whatever reason. Called again after an interruption, it
    continues.

    Args:
        pieces: The pieces; one that is there twice is run once.
        store: Where they keep their results.
        on: Where to run them; None: in this process.
        machine: What each may use.
        progress: Shows how many are finished, and what is at work.

    Raises:
        PiecesFailed: Some of them failed for reasons that the user can correct.
        Exception: The first that the work of a piece raised besides, once all have ended.
    """
    unique = {piece.key: piece for piece in pieces}
    todo = [piece for piece in unique.values() if not store.is_finished(piece)]
    shown = progress or NullProgress()
    shown.begin(len(unique))
    shown.advance(len(unique) - len(todo))
    failed: list[Outcome] = []
    if todo:
        store.check()
        board = Board(shown)
        with closing((on or Local()).run(todo, store, machine or Machine(), board)) as outcomes:
            for outcome in outcomes:
                board.finish(outcome.piece.key)
                if outcome.error is not None or outcome.defect is not None:
                    failed.append(outcome)
    raise_first_defect(failed, len(unique))
    if failed:
        raise PiecesFailed(failed, len(unique))
    return [FinishedPiece(piece, store) for piece in pieces]
