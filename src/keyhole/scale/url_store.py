"""A store of pieces behind a URL, such as s3://bucket/pieces, as fsspec opens it.

A machine works in a folder of its own, which is a copy: what lies at the URL is fetched before the
work begins, and what the work writes is put there while it runs. The result is put there last.
"""

from __future__ import annotations

import hashlib
import logging
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from keyhole.atomic import is_unfinished
from keyhole.errors import DoesNotFit, RunFolderError, one_line
from keyhole.lock import LOCK
from keyhole.scale.piece import Piece
from keyhole.scale.piece_store import RESULT, WORK, PieceStore

log = logging.getLogger("keyhole")

SECONDS_BETWEEN_COPIES = 20.0


class UrlStore(PieceStore):
    """Pieces at a URL.

    Args:
        url: The URL of their folder.
        copy: A folder of this machine for copies; None: one in the folder for temporary files.
    """

    def __init__(self, url: str, copy: Path | None = None) -> None:
        try:
            from fsspec.core import url_to_fs

            self.files, base = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise DoesNotFit(
                f"{url} cannot be opened ({one_line(error)}): install what fsspec needs for it, "
                "such as s3fs"
            ) from None
        self.url, self.base = url, base.rstrip("/")
        name = hashlib.sha256(url.encode()).hexdigest()[:12]
        self.copier: Copier | None = None
        super().__init__(copy or Path(tempfile.gettempdir()) / f"keyhole-pieces-{name}")

    @property
    def place(self) -> str:
        return self.url

    def check(self) -> None:
        super().check()
        try:
            self.files.makedirs(self.base, exist_ok=True)
            self.files.pipe_file(f"{self.base}/.keyhole", b"")
        except Exception as error:  # noqa: BLE001  each file system has errors of its own
            raise RunFolderError(f"cannot write to {self.url} ({one_line(error)})") from None

    def exists(self, name: str) -> bool:
        """Whether a file or folder is there now; what other machines wrote is seen."""
        self.files.invalidate_cache()
        try:
            return bool(self.files.exists(f"{self.base}/{name}"))
        except Exception as error:  # noqa: BLE001  each file system has errors of its own
            raise RunFolderError(f"cannot read {self.url} ({one_line(error)})") from None

    def is_finished(self, piece: Piece) -> bool:
        return self.exists(f"{piece.key}/{RESULT}")

    def has_begun(self, piece: Piece) -> bool:
        return self.exists(f"{piece.key}/{WORK}") and not self.is_finished(piece)

    def read(self, piece: Piece) -> dict[str, Any]:
        self.get_file(f"{piece.key}/{RESULT}")
        return super().read(piece)

    def fetch(self, piece: Piece) -> Path:
        self.get_all(piece)
        return super().fetch(piece)

    def write(self, piece: Piece, result: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
        super().write(piece, result, cost)
        if self.copier is not None:
            self.copier.copy()  # what belongs to the result is there before it
        self.put_file(self.root / piece.key / RESULT)

    def forget(self, piece: Piece) -> None:
        super().forget(piece)
        if self.exists(piece.key):
            self.files.rm(f"{self.base}/{piece.key}", recursive=True)

    @contextmanager
    def work_folder(self, piece: Piece) -> Iterator[Path]:
        with super().work_folder(piece) as folder:
            self.get_all(piece)
            with Copier(self, folder) as self.copier:
                try:
                    yield folder
                finally:
                    self.copier = None

    def get_file(self, name: str) -> None:
        """Copies one file here; a file is there as a whole or not at all, here and there."""
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.half")
        self.files.get_file(f"{self.base}/{name}", str(unfinished))
        unfinished.replace(target)

    def get_all(self, piece: Piece) -> None:
        """Makes the copy what lies at the URL: what another machine has removed goes here, too."""
        work = f"{piece.key}/{WORK}"
        found = self.files.find(f"{self.base}/{work}") if self.exists(work) else []
        names = {path[path.rindex(f"{work}/") :] for path in found}
        copies = (path for path in (self.root / work).rglob("*") if path.is_file())
        for path in copies:
            if path.relative_to(self.root).as_posix() not in names:
                path.unlink()
        for name in sorted(names):
            self.get_file(name)

    def put_file(self, path: Path) -> None:
        name = path.relative_to(self.root).as_posix()
        self.files.makedirs(f"{self.base}/{name}".rpartition("/")[0], exist_ok=True)
        self.files.put_file(str(path), f"{self.base}/{name}")

    def remove_file(self, name: str) -> None:
        if self.exists(name):
            self.files.rm_file(f"{self.base}/{name}")


class Copier:
    """Puts what changes in a folder to its URL, now and then, and at the end.

    Args:
        store: The store that the folder belongs to.
        folder: The folder of a piece's work.
    """

    def __init__(self, store: UrlStore, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.known = self.look()
        self.ended, self.one_copies = threading.Event(), threading.Lock()
        self.thread = threading.Thread(target=self.copy_regularly, daemon=True)

    def __enter__(self) -> Copier:
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.ended.set()
        self.thread.join()
        self.copy()

    def look(self) -> dict[Path, tuple[int, int]]:
        """The whole files in the folder, oldest first, with what tells that they changed."""
        found = {}
        for path in self.folder.rglob("*"):
            if path.name == LOCK or is_unfinished(path):
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # removed meanwhile
                continue
            if path.is_file():
                found[path] = (status.st_mtime_ns, status.st_size)
        return dict(sorted(found.items(), key=lambda each: each[1]))

    def copy(self) -> None:
        """Puts what is new, and removes what is gone."""
        with self.one_copies:
            found = self.look()
            for path, status in found.items():
                if self.known.get(path) != status:
                    self.store.put_file(path)
            for path in self.known.keys() - found.keys():
                self.store.remove_file(path.relative_to(self.store.root).as_posix())
            self.known = found

    def copy_regularly(self) -> None:
        """Copies until the work ends; what fails now is tried again later."""
        while not self.ended.wait(SECONDS_BETWEEN_COPIES):
            try:
                self.copy()
            except Exception as error:  # noqa: BLE001  each file system has errors of its own
                log.warning("note: %s cannot be written now (%s)", self.store.url, one_line(error))
