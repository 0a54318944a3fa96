"""Finds images in a folder, and checks where results may go: nothing is ever overwritten."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keyhole.data.folder import SUFFIXES
from keyhole.data.versions import version_name
from keyhole.errors import BadValue, DataMissing, RunFolderError

MAX_NAME_BYTES = 255
"""The longest file name on common file systems."""


@dataclass(frozen=True, order=True)
class SkippedImage:
    """An image that was not processed.

    Args:
        file: Its path in the source folder.
        why: The reason.
    """

    file: str
    why: str


@dataclass(frozen=True)
class FoundImages:
    """The images in a folder, as paths with ``/``, and the number of other files."""

    images: tuple[str, ...]
    other_files: int


def find_images(root: Path, out: Path) -> FoundImages:
    """Finds all images in ``root``; follows links, but not to ``out``, where results go.

    Hidden files do not count as images.
    """
    images: list[str] = []
    other_files = 0
    results = folder_identity(out) if out.exists() else None
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        inside, above = waiting.pop()
        here, name_here = folder_identity(root / inside), printable_path(root / inside)
        if here in above:
            raise DataMissing(f"{name_here} is a link to a folder above it: remove it")
        if here == results:
            raise DataMissing(f"{name_here} is a link to {printable_path(out)}: remove it")
        for entry in list_folder(root / inside):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if is_folder(entry):
                waiting.append((name, above | {here}))
            elif is_image(entry):
                images.append(name)
            else:
                other_files += 1
    return FoundImages(tuple(sorted(images)), other_files)


def list_folder(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataMissing(f"{printable_path(folder)} cannot be read ({error.strerror})") from None


def folder_identity(folder: Path) -> tuple[int, int]:
    """Returns the device and inode of a folder, which links to it share."""
    try:
        found = folder.stat()
    except OSError as error:
        raise DataMissing(f"{printable_path(folder)} cannot be read ({error.strerror})") from None
    return found.st_dev, found.st_ino


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        where = printable_path(Path(entry.path))
        raise DataMissing(f"{where} is a broken link ({error.strerror}): remove it") from None


def is_image(entry: os.DirEntry[str]) -> bool:
    """Decides by the name; broken links count, so that the user is told about them."""
    named = Path(entry.name).suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    return named and (entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path)))


def check_paths(source: Path, out: Path, key_file: Path) -> None:
    """Raises unless source, result and key lie apart from each other."""
    if not source.is_dir():
        raise DataMissing(f"{printable_path(source)} is not a folder of images")
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{printable_path(out)} is not a folder: choose another")
    one, two, key = (Path(os.path.realpath(path)) for path in (source, out, key_file))
    if one == two or one in two.parents or two in one.parents:
        raise BadValue(
            f"{printable_path(source)} and {printable_path(out)} must be separate folders: neither "
            "may lie inside the other"
        )
    if {one, two} & set(key.parents):
        raise BadValue(
            f"the key file {printable_path(key_file)} must lie neither among the images nor among "
            "their versions: it would travel with them"
        )


def check_result_names(sources: Iterable[str]) -> None:
    """Raises if two images would have results of the same name, or one that of a folder."""
    taken: dict[str, str] = {}
    for source in sources:
        result = version_name(source)
        if result in taken:
            both = f"{printable_path(Path(taken[result]))} and {printable_path(Path(source))}"
            raise BadValue(
                f"{both} would both become {printable_path(Path(result))}: rename one of them"
            )
        taken[result] = source
    folders = {parent for result in taken for parent in parent_folders(result)}
    for result in folders & taken.keys():
        raise BadValue(
            f"{printable_path(Path(taken[result]))} would become {printable_path(Path(result))}, "
            "the name of a folder: rename one of them"
        )


def parent_folders(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def result_name_fits(source: str) -> bool:
    """Returns whether file systems accept the name of an image's versions."""
    return len(os.fsencode(version_name(source).rpartition("/")[2])) <= MAX_NAME_BYTES


def walk_files(root: Path) -> Iterator[Path]:
    """Yields every file in a folder and its subfolders; a link counts as a file."""
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in (*names, *links))


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file as a whole or not at all."""
    half = path.with_name(f".{os.getpid()}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(content)
        half.replace(path)
    except OSError as error:
        with suppress(OSError):
            half.unlink()
        raise RunFolderError(
            f"cannot write {printable_path(path)} ({error.strerror}): the same command continues "
            "from there"
        ) from None


def printable_path(path: Path) -> str:
    """Returns a path on one line that any terminal can print.

    Args:
        path: The path.
    """
    text = str(path)
    return text if text.isprintable() else ascii(text)
