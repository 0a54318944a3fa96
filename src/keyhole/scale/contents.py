"""Digests of what a piece reads besides its values: files, folders, and code of the user's own."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path

from keyhole.errors import DataMissing, one_line

CHUNK = 1 << 20


def digest_path(path: Path) -> str:
    """A digest of a file's bytes, or of the names and bytes of all files in a folder.

    It does not depend on where the file or folder lies, nor on its dates.
    """
    try:
        if not path.is_dir():
            return digest_file(path)
        files = sorted(file for file in path.rglob("*") if file.is_file())
        names = [(file.relative_to(path).as_posix(), digest_file(file)) for file in files]
    except OSError as error:
        raise DataMissing(f"{path} cannot be read ({error.strerror or one_line(error)})") from None
    return hashlib.sha256(repr(names).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """A digest of a file's bytes; a file that has not changed since is not read again."""
    status = path.stat()
    return _digest_bytes(str(path.resolve()), status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1 << 16)
def _digest_bytes(path: str, size: int, changed: int) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def digest_code(names: Iterable[str]) -> dict[str, str]:
    """Digests of the modules behind ``package.module:Name``, by module; imports none of them.

    Args:
        names: Names of parts with their parameters; those of Keyhole's own parts have no module.
    """
    modules = {name.partition("(")[0].partition(":")[0] for name in names if is_address(name)}
    return {module: digest_file(file) for module in modules if (file := find_source(module))}


def is_address(name: str) -> bool:
    """Whether a part is named by its place.

    >>> is_address("my_parts:Fog(depth=2)"), is_address("gaussian(sigma=1)"), is_address("timm:vit")
    (True, False, True)
    """
    return ":" in name.partition("(")[0]


def find_source(module: str) -> Path | None:
    """The file of a module that can be imported from here; None where there is none."""
    places: list[str] | None = None
    found = None
    for part in module.split("."):
        search = places if places is not None else [os.getcwd(), *filter(None, sys.path)]
        found = PathFinder.find_spec(part, search)
        if found is None:
            return None
        places = list(found.submodule_search_locations or ())
    path = Path(found.origin or "") if found is not None else Path()
    return path if path.is_file() else None
