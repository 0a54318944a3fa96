"""Where pieces keep their results: a folder that any later plan finds them in.

STORE/KEY/result.json   what the piece found; there as a whole, or not at all
STORE/KEY/work/         what its work wrote, with what it needs to continue
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keyhole.atomic import check_writable, read_json, remove_tree, write_json
from keyhole.errors import RunFolderError
from keyhole.lock import FolderBusy, FolderLock, make_folder
from keyhole.scale.piece import Piece

RESULT, WORK = "result.json", "work"
LOCK_SECONDS = 180.0
"""How long a piece waits for another process to let go of it: file systems of clusters take a
minute or two to notice that a machine is gone."""


class PieceStore:
    """A folder of pieces; several machines may share it.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def place(self) -> str:
        """Where it is, for :func:`open_store` on any machine."""
        return str(self.root.absolute())

    def check(self) -> None:
        """Raises where nothing could be written."""
        check_writable(self.root)

    def is_finished(self, piece: Piece) -> bool:
        """Whether a piece has a result.

        Args:
            piece: The piece.
        """
        return (self.root / piece.key / RESULT).is_file()

    def has_begun(self, piece: Piece) -> bool:
        """Whether a piece that has no result was begun.

        Args:
            piece: The piece.
        """
        return not self.is_finished(piece) and (self.root / piece.key / WORK).is_dir()

    def read(self, piece: Piece) -> dict[str, Any]:
        """What a finished piece left: its ``result``, and the ``cost`` of the work.

        Args:
            piece: The piece.
        """
        path = self.root / piece.key / RESULT
        found = read_json(path)
        if not isinstance(found, dict) or not isinstance(found.get("result"), dict):
            raise RunFolderError(
                f"{path} is not as keyhole writes it: remove it, and its piece is run again"
            )
        return found

    def fetch(self, piece: Piece) -> Path:
        """The folder of what a piece's work wrote, to read from.

        Args:
            piece: The piece.
        """
        return self.root / piece.key / WORK

    def write(self, piece: Piece, result: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        """Writes a result; from now on the piece is finished.

        Args:
            piece: The piece.
            result: What its work returned.
            cost: What the work took: seconds, and the machine's name.
        """
        described = {"work": piece.work, "values": dict(piece.values), "title": piece.title}
        whole = {**described, "result": dict(result), "cost": dict(cost)}
        write_json(self.root / piece.key / RESULT, whole)

    def forget(self, piece: Piece) -> None:
        """Removes a piece, so that it is run again.

        Args:
            piece: The piece.
        """
        remove_tree(self.root / piece.key / RESULT)
        remove_tree(self.root / piece.key)

    @contextmanager
    def work_folder(self, piece: Piece) -> Iterator[Path]:
        """The folder for a piece's work; no other process gets it meanwhile.

        Args:
            piece: The piece.
        """
        home = self.root / piece.key
        make_folder(home)
        lock = wait_for_lock(home)
        try:
            make_folder(home / WORK)
            yield home / WORK
        finally:
            lock.release()


def wait_for_lock(root: Path) -> FolderLock:
    """Takes the lock of a folder; waits while another process, which may be dying, has it."""
    give_up = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            return FolderLock(root)
        except FolderBusy:
            if time.monotonic() > give_up:
                raise
        time.sleep(0.2)


def open_store(place: str | Path) -> PieceStore:
    """Opens a store of pieces, which need not exist yet.

    Args:
        place: A folder, or a URL that fsspec can open: ``s3://bucket/pieces``.
    """
    if "://" in str(place):
        from keyhole.scale.url_store import UrlStore  # fsspec is not needed for folders

        return UrlStore(str(place))
    return PieceStore(Path(place).expanduser())
