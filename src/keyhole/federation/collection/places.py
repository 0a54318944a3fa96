"""What lies in a folder, and where results may go: nothing is ever written over."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from keyhole.data.folder import SUFFIXES
from keyhole.data.versions import version_name
from keyhole.errors import BadValue, DataMissing, RunFolderError

LONGEST = 255
"""Bytes of a file's name, on common file systems."""


@dataclass(frozen=True, order=True)
class LeftOut:
    """A picture that nothing was made of, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Found:
    """Pictures below a folder, as paths with ``/``; how many other files there are."""

    pictures: tuple[str, ...]
    others: int


def find_pictures(root: Path, out: Path) -> Found:
    """All pictures below ``root``; links are followed, but not to ``out``, where results go.

    Hidden files are no pictures.
    """
    pictures: list[str] = []
    others = 0
    results = identity(out) if out.exists() else None
    waiting: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while waiting:
        inside, above = waiting.pop()
        here = identity(root / inside)
        if here in above:
            raise DataMissing(f"{shown(root / inside)} is a link to a folder above it: remove it")
        if here == results:
            raise DataMissing(f"{shown(root / inside)} is a link to {shown(out)}: remove it")
        for entry in listed(root / inside):
            name = f"{inside}/{entry.name}" if inside else entry.name
            if is_folder(entry):
                waiting.append((name, above | {here}))
            elif is_picture(entry):
                pictures.append(name)
            else:
                others += 1
    return Found(tuple(sorted(pictures)), others)


def listed(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise DataMissing(f"{shown(folder)} cannot be read ({error.strerror})") from None


def identity(folder: Path) -> tuple[int, int]:
    try:
        found = folder.stat()
    except OSError as error:
        raise DataMissing(f"{shown(folder)} cannot be read ({error.strerror})") from None
    return found.st_dev, found.st_ino


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        where = shown(Path(entry.path))
        raise DataMissing(f"{where} leads nowhere ({error.strerror}): remove it") from None


def is_picture(entry: os.DirEntry[str]) -> bool:
    """By its name; links that lead nowhere count, so that they are told of."""
    named = Path(entry.name).suffix.lower() in SUFFIXES and not entry.name.startswith(".")
    return named and (entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path)))


def check_apart(source: Path, out: Path, key_file: Path) -> None:
    """Source, result and key must not lie in each other."""
    if not source.is_dir():
        raise DataMissing(f"{shown(source)} is not a folder of images")
    if out.exists() and not out.is_dir():
        raise RunFolderError(f"{shown(out)} is not a folder: choose another")
    one, two, key = (Path(os.path.realpath(path)) for path in (source, out, key_file))
    if one == two or one in two.parents or two in one.parents:
        raise BadValue(
            f"{shown(source)} and {shown(out)} must be folders apart: neither inside the other"
        )
    if {one, two} & set(key.parents):
        raise BadValue(
            f"the key file {shown(key_file)} must lie neither among the images nor among what "
            "is made of them: it would travel with them"
        )


def check_names(sources: Iterable[str]) -> None:
    """No two pictures may have results of one name, and none that of a folder."""
    taken: dict[str, str] = {}
    for source in sources:
        result = version_name(source)
        if result in taken:
            both = f"{shown(Path(taken[result]))} and {shown(Path(source))}"
            raise BadValue(f"{both} would both become {shown(Path(result))}: rename one of them")
        taken[result] = source
    folders = {parent for result in taken for parent in parents(result)}
    for result in folders & taken.keys():
        raise BadValue(
            f"{shown(Path(taken[result]))} would become {shown(Path(result))}, the name of a "
            "folder: rename one of them"
        )


def parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def has_room_for(source: str) -> bool:
    """Whether the name of its result is one that file systems take."""
    return len(os.fsencode(version_name(source).rpartition("/")[2])) <= LONGEST


def files_below(root: Path) -> Iterator[Path]:
    """Every file below a folder; a link is a file, wherever it leads."""
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in (*names, *links))


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there as a whole or not at all."""
    half = path.with_name(f".{os.getpid()}.half")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        half.write_bytes(content)
        half.replace(path)
    except OSError as error:
        with suppress(OSError):
            half.unlink()
        raise RunFolderError(
            f"cannot write {shown(path)} ({error.strerror}): the same command goes on from there"
        ) from None


def shown(path: Path) -> str:
    """A path on one line that any terminal can print."""
    text = str(path)
    return text if text.isprintable() else ascii(text)
