"""What is on record of a folder, and whether this key and this defense may go on there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keyhole.atomic import is_half
from keyhole.data.record_marks import Changes, find_changes
from keyhole.data.versions import (
    BAD_LINE,
    About,
    Manifest,
    Picture,
    Stretch,
    has_versions,
    picture_of,
    read_about,
    record_lines,
)
from keyhole.defenses import DEFENSES, Csvar
from keyhole.errors import DataMissing, DoesNotFit, RunFolderError
from keyhole.federation.collection.key import (
    SiteKey,
    check_stretch,
    make_key,
    new_stretch,
    read_key,
)
from keyhole.federation.collection.places import LeftOut, files_below, shown
from keyhole.untrusted import parse_json


@dataclass(frozen=True)
class Record:
    """What is on record of a folder, as far as it can be believed."""

    manifest: Manifest
    count: int = 0
    """Pictures that were on record when it was written."""
    marked: bool = True
    """Whether changes would show: records of older versions have no marks."""
    changes: Changes = field(default_factory=Changes)
    spoilt: tuple[LeftOut, ...] = ()
    """Lines that cannot be believed or read."""


def opened(out: Path) -> About | None:
    """What holds for a folder; None for one that is new or empty."""
    if not has_versions(out):
        check_strangers(out, set())
        return None
    links = [file for file in files_below(out) if file.is_symlink()]
    if links:
        raise RunFolderError(f"{shown(links[0])} is a link, which this command never makes")
    return read_about(out, record_lines(out)[0])


def read_record(root: Path, about: About, key: SiteKey) -> Record:
    """The record of a folder that the key made; lines that were changed cost only themselves."""
    first, *texts = record_lines(root)
    lines = [parsed(text) for text in texts]
    if about.key_check == key.old_check:
        believed, changes, marked = [line is not None for line in lines], Changes(), False
    else:
        believed, changes = find_changes(parse_json(first), lines, key.mark)
        marked = True
    pictures: dict[str, Picture] = {}
    spoilt: list[LeftOut] = []
    for number, (line, ok) in enumerate(zip(lines, believed, strict=True), 1):
        picture = read_picture(line)
        if picture is not None and ok:
            pictures[picture.source] = picture
        else:
            name = picture.source if picture is not None else f"(line {number} of the record)"
            spoilt.append(LeftOut(name, "its line in the record was changed or cannot be read"))
    spoilt += [LeftOut("(not on record)", "its line is missing")] * min(changes.missing, SHOWN)
    count = len(pictures) + len(spoilt)
    return Record(Manifest(about, pictures), count, marked, changes, tuple(spoilt))


SHOWN = 100_000
"""Missing lines that are counted one by one."""


def parsed(text: str) -> dict[str, Any] | None:
    """A line as JSON; None where it is none."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def read_picture(line: dict[str, Any] | None) -> Picture | None:
    """The picture that a line tells of; None where it tells of none."""
    try:
        return None if line is None else picture_of(line)
    except BAD_LINE:
        return None


def check_strangers(out: Path, own: set[str]) -> None:
    """Refuses a folder with files that are not among its ``own``."""
    for file in files_below(out):
        inside = file.relative_to(out)
        if inside.as_posix() not in own and not is_half(file):
            raise RunFolderError(
                f"{shown(out)} holds other files ({shown(inside)}): choose another folder"
            )


def unrecorded(root: Path, record: Record) -> str:
    """Says where a finished folder has versions that are not on record, as an older one lacks."""
    if record.changes or not record.manifest.about.complete:
        return ""
    own = {picture.file for picture in record.manifest.pictures.values()}
    folders = [folder for folder in root.glob("epoch-*") if folder.is_dir()]
    found = {
        file.relative_to(folder).as_posix() for folder in folders for file in files_below(folder)
    }
    more = sum(name.lower().endswith(".png") for name in found - own)
    return f"it lacks {more} image(s) that have versions" if more else ""


def key_of(key_file: Path, out: Path, known: About | None) -> tuple[SiteKey, Stretch | None, bool]:
    """The key in the file, how it was stretched, and whether it was made now for a new folder."""
    if known is not None and not os.path.lexists(key_file):
        raise DataMissing(
            f"the key file {shown(key_file)} does not exist: name the one that {shown(out)} was "
            "made with"
        )
    if not os.path.lexists(key_file):
        return make_key(key_file).key(None), None, True
    held = read_key(key_file)
    stretch = known.stretch if known is not None else new_stretch() if held.is_text else None
    if stretch is not None:
        check_stretch(stretch)
    return held.key(stretch), stretch, False


def check_key(known: About, key: SiteKey, out: Path, key_file: Path) -> None:
    """Refuses a folder that another key made."""
    if known.key_check not in (key.check, key.old_check):
        raise RunFolderError(
            f"{shown(out)} was made with another key than {shown(key_file)}: name that key, or "
            "another folder"
        )


def check_defense(known: About, about: About, out: Path) -> None:
    """Refuses a folder that another defense made."""
    if known.made_by != about.made_by:
        raise RunFolderError(
            f"{shown(out)} was made by {known.made_by}, not {about.made_by}: choose another folder"
        )


def defense_of(about: About) -> Csvar:
    """The defense that a record names."""
    defense = DEFENSES.parse(about.made_by)
    if not isinstance(defense, Csvar):
        raise DoesNotFit(f"what {defense.name} has made cannot be undone")
    return defense
