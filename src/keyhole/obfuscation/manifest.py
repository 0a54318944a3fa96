"""Verifies the manifest of a folder of versions, and whether a key and a defense may be used."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyhole.atomic import is_unfinished
from keyhole.data.manifest_signatures import ManifestChanges, find_changes
from keyhole.data.versions import (
    LINE_ERRORS,
    ImageEntry,
    Manifest,
    ManifestHeader,
    ScryptSettings,
    has_versions,
    parse_entry,
    read_manifest_header,
    read_manifest_lines,
)
from keyhole.defenses import DEFENSES, Csvar
from keyhole.errors import DataMissing, DoesNotFit, RunFolderError
from keyhole.obfuscation.folders import SkippedImage, printable_path, walk_files
from keyhole.obfuscation.key import (
    SiteKey,
    check_scrypt_settings,
    make_key,
    new_scrypt_settings,
    read_key,
)
from keyhole.untrusted import parse_json

MAX_LISTED = 100_000
"""Missing lines that are listed one by one."""


@dataclass(frozen=True)
class VerifiedManifest:
    """The entries of a manifest that carry valid signatures."""

    manifest: Manifest
    count: int = 0
    """Images that were in the manifest when it was written."""
    signed: bool = True
    """Whether changes can be noticed: manifests of older versions have no signatures."""
    changes: ManifestChanges = field(default_factory=ManifestChanges)
    invalid: tuple[SkippedImage, ...] = ()
    """Lines that were changed or cannot be read."""


def read_existing_header(out: Path) -> ManifestHeader | None:
    """Returns the manifest's header; None for a folder that is new or empty."""
    if not has_versions(out):
        check_no_other_files(out, set())
        return None
    links = [file for file in walk_files(out) if file.is_symlink()]
    if links:
        where = printable_path(links[0])
        raise RunFolderError(f"{where} is a link, which this command never makes: remove it")
    return read_manifest_header(out, read_manifest_lines(out)[0])


def verify_manifest(root: Path, header: ManifestHeader, key: SiteKey) -> VerifiedManifest:
    """Reads the manifest that ``key`` signed; a changed line costs only that line."""
    first, *texts = read_manifest_lines(root)
    lines = [parse_line(text) for text in texts]
    if header.key_check == key.old_fingerprint:
        valid, changes, signed = [line is not None for line in lines], ManifestChanges(), False
    else:
        valid, changes = find_changes(parse_json(first), lines, key.sign)
        signed = True
    images: dict[str, ImageEntry] = {}
    invalid: list[SkippedImage] = []
    for number, (line, ok) in enumerate(zip(lines, valid, strict=True), 1):
        entry = parse_entry_or_none(line)
        if entry is not None and ok:
            images[entry.source] = entry
        else:
            name = entry.source if entry is not None else f"(line {number} of the manifest)"
            why = "its line in the manifest was changed or cannot be read"
            invalid.append(SkippedImage(name, why))
    missing = SkippedImage("(not in the manifest)", "its line is missing")
    invalid += [missing] * min(changes.missing, MAX_LISTED)
    count = len(images) + len(invalid)
    return VerifiedManifest(Manifest(header, images), count, signed, changes, tuple(invalid))


def parse_line(text: str) -> dict[str, Any] | None:
    """Parses a line of JSON; returns None if it holds no object."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def parse_entry_or_none(line: dict[str, Any] | None) -> ImageEntry | None:
    """Parses the entry on an image; returns None if it is invalid."""
    try:
        return None if line is None else parse_entry(line)
    except LINE_ERRORS:
        return None


def check_no_other_files(out: Path, own: set[str]) -> None:
    """Refuses a folder with files that are not among its ``own``."""
    for file in walk_files(out):
        inside = file.relative_to(out)
        if inside.as_posix() not in own and not is_unfinished(file):
            raise RunFolderError(
                f"{printable_path(out)} holds other files ({printable_path(inside)}): choose "
                "another folder"
            )


def describe_unlisted_images(root: Path, verified: VerifiedManifest) -> str:
    """Says how many images have versions in a finished folder but are not in the manifest.

    A manifest that was replaced by an older one lacks them.
    """
    if verified.changes or not verified.manifest.header.complete:
        return ""
    own = {entry.file for entry in verified.manifest.images.values()}
    folders = [folder for folder in root.glob("epoch-*") if folder.is_dir()]
    found = {
        file.relative_to(folder).as_posix() for folder in folders for file in walk_files(folder)
    }
    more = sum(name.lower().endswith(".png") for name in found - own)
    return f"it lacks {more} image(s) that have versions" if more else ""


def load_or_make_key(
    key_file: Path, out: Path, known: ManifestHeader | None
) -> tuple[SiteKey, ScryptSettings | None, bool]:
    """Returns the key in a file, how it was stretched, and whether it was created just now.

    ``known`` is the header of the folder's manifest; without one the folder is new.
    """
    if known is not None and not os.path.lexists(key_file):
        raise DataMissing(
            f"the key file {printable_path(key_file)} does not exist: name the one that "
            f"{printable_path(out)} was made with"
        )
    if not os.path.lexists(key_file):
        return make_key(key_file).derive_key(None), None, True
    read = read_key(key_file)
    stretch = (
        known.stretch if known is not None else new_scrypt_settings() if read.is_text else None
    )
    if stretch is not None:
        check_scrypt_settings(stretch)
    return read.derive_key(stretch), stretch, False


def check_key(known: ManifestHeader, key: SiteKey, out: Path, key_file: Path) -> None:
    """Refuses a folder that was made with another key."""
    if known.key_check not in (key.fingerprint, key.old_fingerprint):
        raise RunFolderError(
            f"{printable_path(out)} was made with another key than {printable_path(key_file)}: "
            "name that key, or another folder"
        )


def check_defense(known: ManifestHeader, header: ManifestHeader, out: Path) -> None:
    """Refuses a folder that was made with another defense."""
    if known.made_by != header.made_by:
        raise RunFolderError(
            f"{printable_path(out)} was made by {known.made_by}, not {header.made_by}: choose "
            "another folder"
        )


def parse_defense(header: ManifestHeader) -> Csvar:
    """Returns the defense that a manifest names."""
    defense = DEFENSES.parse_builtin(header.made_by)
    if not isinstance(defense, Csvar):
        raise DoesNotFit(f"images shuffled by {defense.name} cannot be restored")
    return defense
