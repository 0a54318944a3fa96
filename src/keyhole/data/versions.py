"""A folder of pictures in several versions, one for each epoch of training.

    ROOT/keyhole-versions.jsonl     a line on the whole, then a line for every picture
    ROOT/epoch-001/cat/a.jpg.png    the first version of cat/a.jpg

Who trains on it needs no key, and need not know how the versions were made. Lines are added as
pictures are done; of two on the same picture the later one holds. Lines carry marks of the key that
made them (see :mod:`keyhole.data.record_marks`), which only its holder can check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from keyhole.atomic import write_text
from keyhole.data.folder import by_class, owners, reader, set_of, shared_size
from keyhole.data.image_set import ImageSet, Size
from keyhole.data.record_marks import Mark, marked_head, marked_line
from keyhole.errors import DataMissing, RunFolderError, one_line
from keyhole.untrusted import parse_json, read_regular

MANIFEST = "keyhole-versions.jsonl"
KIND: dict[str, Any] = {"keyhole": "versions", "format": 1}
"""What the first line begins with."""
GREY = {"1", "L"}


@dataclass(frozen=True)
class Stretch:
    """How a key was made of words: scrypt's salt, as hex digits, and its costs."""

    salt: str
    n: int
    r: int
    p: int


@dataclass(frozen=True)
class About:
    """What holds for the whole folder.

    ``made_by`` spells the defense; ``key_check`` tells one key's work from another's, and nothing
    of the key. ``complete``: no picture is still to be done. ``stretch`` is None where the key file
    holds random bytes.
    """

    made_by: str
    key_check: str
    complete: bool = False
    stretch: Stretch | None = None


@dataclass(frozen=True)
class Picture:
    """One picture: where it was, what its pixels are like, how long each version's file is.

    ``check`` (of the pixels), ``stamp`` (of the source file) and ``hint`` (what undoing it needs
    besides the key) mean something only to the holder of the key.
    """

    source: str
    mode: str
    size: Size
    check: str
    stamp: str
    hint: str
    lengths: tuple[int, ...]

    @property
    def file(self) -> str:
        """Where each version is below its epoch's folder."""
        return version_name(self.source)


@dataclass(frozen=True)
class Manifest:
    """All that is on record of a folder; pictures by where they were."""

    about: About
    pictures: Mapping[str, Picture]

    @property
    def epochs(self) -> int:
        """Versions that a picture has at most: one whose source was gone early has fewer."""
        return max((len(picture.lengths) for picture in self.pictures.values()), default=0)


def version_name(source: str) -> str:
    """Versions are PNG files; other names keep their suffix before it.

    >>> version_name("cat/a.jpg"), version_name("cat/a.png")
    ('cat/a.jpg.png', 'cat/a.png')
    """
    return source if PurePosixPath(source).suffix.lower() == ".png" else f"{source}.png"


def epoch_folder(root: Path, number: int) -> Path:
    """Where the first, second, ... versions are."""
    return root / f"epoch-{number:03d}"


def version_file(root: Path, picture: Picture, epoch: int) -> Path:
    """The version for an epoch of training, which count from 0; a picture's are used in turns."""
    return epoch_folder(root, 1 + epoch % len(picture.lengths)) / picture.file


def has_versions(root: Path) -> bool:
    return (root / MANIFEST).is_file()


def read_manifest(root: Path) -> Manifest:
    """What is on record; a line that was being written at a kill does not count."""
    first, *lines = record_lines(root)
    try:
        pictures = [picture_of(parse_json(line)) for line in lines]
    except BAD_LINE as error:
        raise no_record(root, error) from None
    return Manifest(read_about(root, first), {picture.source: picture for picture in pictures})


LONGEST = 1 << 32
"""Bytes of a record."""
BAD_LINE = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What is raised for a line that is not as it should be."""


def record_lines(root: Path) -> list[str]:
    """The whole lines of the record, at least one."""
    path = root / MANIFEST
    try:
        text = read_regular(path, LONGEST).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise DataMissing(f"{path} cannot be read ({why})") from None
    return text.split("\n")[:-1] or [""]


def read_about(root: Path, first: str) -> About:
    """What the first line of the record says."""
    try:
        return about_of(parse_json(first))
    except BAD_LINE as error:
        raise no_record(root, error) from None


def no_record(root: Path, error: Exception) -> DataMissing:
    return DataMissing(
        f"{root / MANIFEST} is not a list of versions as `keyhole obfuscate` writes it "
        f"({one_line(error)}): make the folder again"
    )


def about_of(found: dict[str, Any]) -> About:
    if {key: found.get(key) for key in KIND} != KIND:
        raise ValueError("of another kind or format")
    stretch = found.get("stretch")
    return About(
        str(found["made_by"]),
        str(found["key_check"]),
        found["complete"] is True,
        None if stretch is None else stretch_of(stretch),
    )


def stretch_of(found: dict[str, Any]) -> Stretch:
    return Stretch(str(found["salt"]), *(int(found[name]) for name in ("n", "r", "p")))


def picture_of(found: dict[str, Any]) -> Picture:
    """A line of the record; its path never leads out of the folder it is joined to."""
    source = str(found["source"])
    if "\0" in source or {"", ".", ".."} & set(source.split("/")):
        raise ValueError(f"{source!r} is no path inside a folder")
    height, width = (int(side) for side in found["size"])
    lengths = tuple(int(length) for length in found["lengths"])
    if min(height, width) < 1 or not lengths:
        raise ValueError(f"{source!r} has no pixels or no versions")
    texts = (str(found[key]) for key in ("mode", "check", "stamp", "hint"))
    mode, check, stamp, hint = texts
    return Picture(source, mode, (height, width), check, stamp, hint, lengths)


def write_manifest(root: Path, manifest: Manifest, mark: Mark | None = None) -> None:
    """Writes the record anew, in order and without lines that no longer hold.

    ``mark`` is a key's; without it nobody will notice a change of the record.
    """
    pictures = sorted(manifest.pictures.values(), key=lambda picture: picture.source)
    lines = [picture_line(picture, number, mark) for number, picture in enumerate(pictures, 1)]
    head: dict[str, Any] = KIND | asdict(manifest.about)
    if mark is not None:
        head = marked_head(head, lines, mark)
    whole = [json.dumps(each) for each in (head, *lines)]
    write_text(root / MANIFEST, "".join(f"{line}\n" for line in whole))


def add_to_manifest(
    root: Path, pictures: Iterable[Picture], mark: Mark | None = None, *, number: int = 1
) -> None:
    """Adds lines to the record, the first of them under ``number``."""
    path = root / MANIFEST
    lines = [picture_line(picture, n, mark) for n, picture in enumerate(pictures, number)]
    try:
        with path.open("a", encoding="ascii") as record:
            record.writelines(f"{json.dumps(line)}\n" for line in lines)
    except OSError as error:
        raise RunFolderError(f"cannot write {path} ({error.strerror})") from None


def picture_line(picture: Picture, number: int, mark: Mark | None) -> dict[str, Any]:
    """A line of the record as JSON: in ASCII, names that are no text pass as lone surrogates."""
    plain = asdict(picture)
    return plain if mark is None else marked_line(plain, number, mark)


def version_set(root: Path, size: Size | None, *, by_user: bool = False) -> ImageSet:
    """The versions as one set of images, in the order in which the sources would be read."""
    manifest = read_manifest(root)
    if not manifest.about.complete:
        raise DataMissing(f"{root} is not finished: run the same `keyhole obfuscate` again")
    if not manifest.pictures:
        raise DataMissing(f"{root} holds no versions: none of the images could be used")
    in_order = sorted(manifest.pictures, key=lambda source: source.rpartition("/")[::2])
    sources = [Path(source) for source in in_order]
    chosen, labels, classes = by_class(sources, depth=1 if by_user else 0)
    pictures = [manifest.pictures[path.as_posix()] for path in chosen]
    sizes: dict[Size, Path] = {}
    for picture in pictures:
        sizes.setdefault(picture.size, Path(picture.source))
    target = shared_size(root, sizes, size)
    grey = all(picture.mode in GREY for picture in pictures)
    versions = tuple(
        reader([version_file(root, picture, epoch) for picture in pictures], target, grey=grey)
        for epoch in range(manifest.epochs)
    )
    return set_of(
        str(root),
        versions[0],
        labels,
        classes,
        target,
        grey=grey,
        users=owners(chosen) if by_user else None,
        versions=versions,
    )
