"""What runs in Ray's workers."""

from __future__ import annotations

import os
import sys
from typing import Any

from keyhole.errors import KeyholeError
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import open_store
from keyhole.scale.worker import do_piece


class ReportActor:
    """Collects what workers report, until the driver asks for it."""

    def __init__(self) -> None:
        self.reports: dict[str, tuple[float, str]] = {}

    def add(self, key: str, share: float, text: str) -> None:
        """Notes where a piece stands.

        Args:
            key: The piece's key.
            share: How much of it is done.
            text: What is being done.
        """
        self.reports[key] = (share, text)

    def take(self) -> dict[str, tuple[float, str]]:
        """What was reported since the last call."""
        taken, self.reports = self.reports, {}
        return taken


def do_on_worker(
    piece: Piece, store: str, machine: Machine, reports: Any, folder: str, search: list[str]
) -> str | None:
    """Runs a piece in a worker of Ray; returns what the user can correct, if anything.

    Args:
        piece: The piece.
        store: The place of the store.
        machine: What it may use.
        reports: The actor that is told how far it is.
        folder: The driver's current folder, to which paths in the piece are relative.
        search: Where the driver looks for modules first.
    """
    if os.path.isdir(folder):
        os.chdir(folder)
    for place in [*search, folder]:
        if place and place not in sys.path:
            sys.path.append(place)

    def report(share: float, text: str) -> None:
        reports.add.remote(piece.key, share, text)

    try:
        do_piece(piece, open_store(store), machine, report)
    except KeyholeError as error:
        return str(error)
    return None
