"""A folder of images in several versions, one for each epoch of training.

    ROOT/keyhole-versions.jsonl     the manifest: a header line, then one line per image
    ROOT/epoch-001/cat/a.jpg.png    the first version of cat/a.jpg

Training on it needs no key, and no knowledge of how the versions were made. Lines are appended as
images are done; of two lines on the same image the later one counts. Lines carry signatures of the
key that made them (see :mod:`keyhole.data.manifest_signatures`), which only its holder can check.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from keyhole.atomic import write_text
from keyhole.data.folder import (
    common_size,
    group_by_class,
    make_image_set,
    make_reader,
    user_numbers,
)
from keyhole.data.image_set import ImageSet, Size
from keyhole.data.manifest_signatures import Sign, sign_header, sign_line
from keyhole.errors import DataMissing, RunFolderError, one_line
from keyhole.untrusted import parse_json, read_regular

MANIFEST = "keyhole-versions.jsonl"
FORMAT_HEADER: dict[str, Any] = {"keyhole": "versions", "format": 1}
"""What the header line begins with."""
GREY_MODES = {"1", "L"}
MAX_MANIFEST_BYTES = 1 << 32
LINE_ERRORS = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
"""What parsing an invalid line may raise."""


@dataclass(frozen=True)
class ScryptSettings:
    """How a key was derived from a passphrase: scrypt's salt, as hex digits, and its costs."""

    salt: str
    n: int
    r: int
    p: int


@dataclass(frozen=True)
class ManifestHeader:
    """What holds for the whole folder.

    Args:
        made_by: The defense, as text.
        key_check: Identifies the key, and reveals nothing of it.
        complete: Whether all images are done.
        stretch: How the key was derived from a passphrase; None for a key of random bytes.
    """

    made_by: str
    key_check: str
    complete: bool = False
    stretch: ScryptSettings | None = None


@dataclass(frozen=True)
class ImageEntry:
    """A manifest's line on one image.

    ``check``, ``stamp`` and ``hint`` mean something only to the holder of the key.

    Args:
        source: The image's path in the source folder.
        mode: Pillow's mode.
        size: Height and width.
        check: A keyed hash of the pixels.
        stamp: A keyed hash of the source file's size and time.
        hint: What restoring the image needs besides the key.
        lengths: The length of each version's file.
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
        """The path of each version in its epoch's folder."""
        return version_name(self.source)


@dataclass(frozen=True)
class Manifest:
    """A folder's manifest; ``images`` are its entries by source path."""

    header: ManifestHeader
    images: Mapping[str, ImageEntry]

    @property
    def epochs(self) -> int:
        """The largest number of versions; an image whose source was removed may have fewer."""
        return max((len(entry.lengths) for entry in self.images.values()), default=0)


def version_name(source: str) -> str:
    """Returns the name of an image's versions, which are PNG files.

    >>> version_name("cat/a.jpg"), version_name("cat/a.png")
    ('cat/a.jpg.png', 'cat/a.png')
    """
    return source if PurePosixPath(source).suffix.lower() == ".png" else f"{source}.png"


def epoch_folder(root: Path, number: int) -> Path:
    """Returns the folder of the first, second, ... versions; ``number`` counts from 1."""
    return root / f"epoch-{number:03d}"


def version_file(root: Path, entry: ImageEntry, epoch: int) -> Path:
    """Returns the version for an epoch, counted from 0; an image's versions are used in turn."""
    return epoch_folder(root, 1 + epoch % len(entry.lengths)) / entry.file


def has_versions(root: Path) -> bool:
    return (root / MANIFEST).is_file()


def read_manifest(root: Path) -> Manifest:
    """Reads the manifest; a last line that was cut off by a kill does not count."""
    first, *lines = read_manifest_lines(root)
    try:
        entries = [parse_entry(parse_json(line)) for line in lines]
    except LINE_ERRORS as error:
        raise invalid_manifest(root, error) from None
    return Manifest(read_manifest_header(root, first), {entry.source: entry for entry in entries})


def read_manifest_lines(root: Path) -> list[str]:
    """Returns the complete lines of the manifest, at least one."""
    path = root / MANIFEST
    try:
        text = read_regular(path, MAX_MANIFEST_BYTES).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = (isinstance(error, OSError) and error.strerror) or one_line(error)
        raise DataMissing(f"{path} cannot be read ({why})") from None
    return text.split("\n")[:-1] or [""]


def read_manifest_header(root: Path, first: str) -> ManifestHeader:
    """Parses the first line of the manifest."""
    try:
        return parse_header(parse_json(first))
    except LINE_ERRORS as error:
        raise invalid_manifest(root, error) from None


def invalid_manifest(root: Path, error: Exception) -> DataMissing:
    return DataMissing(
        f"{root / MANIFEST} is not a manifest as `keyhole obfuscate` writes it "
        f"({one_line(error)}): make the folder again"
    )


def parse_header(found: dict[str, Any]) -> ManifestHeader:
    if {key: found.get(key) for key in FORMAT_HEADER} != FORMAT_HEADER:
        raise ValueError("of another kind or format")
    stretch = found.get("stretch")
    return ManifestHeader(
        str(found["made_by"]),
        str(found["key_check"]),
        found["complete"] is True,
        None if stretch is None else parse_scrypt_settings(stretch),
    )


def parse_scrypt_settings(found: dict[str, Any]) -> ScryptSettings:
    return ScryptSettings(str(found["salt"]), *(int(found[name]) for name in ("n", "r", "p")))


def parse_entry(found: dict[str, Any]) -> ImageEntry:
    """Parses a line on an image; raises if its path leads out of the folder."""
    source = str(found["source"])
    if "\0" in source or {"", ".", ".."} & set(source.split("/")):
        raise ValueError(f"{source!r} is not a path inside a folder")
    height, width = (int(side) for side in found["size"])
    lengths = tuple(int(length) for length in found["lengths"])
    if min(height, width) < 1 or not lengths:
        raise ValueError(f"{source!r} has no pixels or no versions")
    texts = (str(found[key]) for key in ("mode", "check", "stamp", "hint"))
    mode, check, stamp, hint = texts
    return ImageEntry(source, mode, (height, width), check, stamp, hint, lengths)


def write_manifest(root: Path, manifest: Manifest, sign: Sign | None = None) -> None:
    """Writes the whole manifest, sorted by source path.

    ``sign`` makes a key's signatures; without it a change of the manifest cannot be noticed.
    """
    entries = sorted(manifest.images.values(), key=lambda entry: entry.source)
    lines = [entry_line(entry, number, sign) for number, entry in enumerate(entries, 1)]
    header: dict[str, Any] = FORMAT_HEADER | asdict(manifest.header)
    if sign is not None:
        header = sign_header(header, lines, sign)
    texts = [json.dumps(each) for each in (header, *lines)]
    write_text(root / MANIFEST, "".join(f"{text}\n" for text in texts))


def append_to_manifest(
    root: Path, entries: Iterable[ImageEntry], sign: Sign | None = None, *, number: int = 1
) -> None:
    """Appends lines to the manifest; the first of them gets ``number``."""
    path = root / MANIFEST
    lines = [entry_line(entry, n, sign) for n, entry in enumerate(entries, number)]
    try:
        with path.open("a", encoding="ascii") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
    except OSError as error:
        raise RunFolderError(f"cannot write {path} ({error.strerror})") from None


def entry_line(entry: ImageEntry, number: int, sign: Sign | None) -> dict[str, Any]:
    """Returns a manifest's line as JSON; in ASCII, so that names need not be valid text."""
    plain = asdict(entry)
    return plain if sign is None else sign_line(plain, number, sign)


def load_versions(root: Path, size: Size | None, *, by_user: bool = False) -> ImageSet:
    """Loads a folder of versions, in the order in which the sources would be read."""
    manifest = read_manifest(root)
    if not manifest.header.complete:
        raise DataMissing(f"{root} is not finished: run the same `keyhole obfuscate` again")
    if not manifest.images:
        raise DataMissing(f"{root} holds no versions: none of the images could be used")
    in_order = sorted(manifest.images, key=lambda source: source.rpartition("/")[::2])
    sources = [Path(source) for source in in_order]
    chosen, labels, classes = group_by_class(sources, depth=1 if by_user else 0)
    entries = [manifest.images[path.as_posix()] for path in chosen]
    sizes: dict[Size, Path] = {}
    for entry in entries:
        sizes.setdefault(entry.size, Path(entry.source))
    target = common_size(root, sizes, size)
    grey = all(entry.mode in GREY_MODES for entry in entries)
    versions = tuple(
        make_reader([version_file(root, entry, epoch) for entry in entries], target, grey=grey)
        for epoch in range(manifest.epochs)
    )
    return make_image_set(
        str(root),
        versions[0],
        labels,
        classes,
        target,
        grey=grey,
        users=user_numbers(chosen) if by_user else None,
        versions=versions,
    )
