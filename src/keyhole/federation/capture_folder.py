"""Whether a folder may hold what a curious server wrote; imports no torch."""

from __future__ import annotations

from pathlib import Path

from keyhole.errors import RunFolderError


def check_capture_folder(root: Path) -> None:
    """Raises where there is no folder to read captured rounds from."""
    if not root.is_dir():
        raise RunFolderError(f"{root} is not a folder: name one that a curious server wrote")
