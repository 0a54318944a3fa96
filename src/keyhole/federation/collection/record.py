"""What is on record of a folder, and whether this key and this defense may go on there."""

from __future__ import annotations

from pathlib import Path

from keyhole.atomic import is_half
from keyhole.data.versions import About, Manifest, has_versions, read_manifest
from keyhole.defenses import DEFENSES, Csvar
from keyhole.errors import DataMissing, DoesNotFit, RunFolderError
from keyhole.federation.collection.key import SiteKey, make_key, read_key
from keyhole.federation.collection.places import files_below, shown


def opened(out: Path) -> Manifest | None:
    """What is on record of a folder; None for one that is new or empty."""
    if not has_versions(out):
        check_strangers(out, set())
        return None
    links = [file for file in files_below(out) if file.is_symlink()]
    if links:
        raise RunFolderError(f"{shown(links[0])} is a link, which this command never makes")
    return read_manifest(out)


def check_strangers(out: Path, own: set[str]) -> None:
    """Refuses a folder with files that are not among its ``own``."""
    for file in files_below(out):
        inside = file.relative_to(out)
        if inside.as_posix() not in own and not is_half(file):
            raise RunFolderError(
                f"{shown(out)} holds other files ({shown(inside)}): choose another folder"
            )


def key_of(key_file: Path, out: Path, known: Manifest | None) -> tuple[SiteKey, bool]:
    """The key in the file, and whether it was made now: a new one for a new folder."""
    if key_file.exists():
        return read_key(key_file), False
    if known is not None:
        raise DataMissing(
            f"the key file {shown(key_file)} does not exist: name the one that {shown(out)} was "
            "made with"
        )
    return make_key(key_file), True


def accepted(known: Manifest | None, about: About, out: Path, key_file: Path) -> Manifest:
    """The record, if it is of the same key and defense; an empty one for a new folder."""
    if known is None:
        return Manifest(about, {})
    if known.about.key_check != about.key_check:
        raise RunFolderError(
            f"{shown(out)} was made with another key than {shown(key_file)}: name that key, or "
            "another folder"
        )
    if known.about.made_by != about.made_by:
        raise RunFolderError(
            f"{shown(out)} was made by {known.about.made_by}, not {about.made_by}: choose another "
            "folder"
        )
    return known


def defense_of(about: About) -> Csvar:
    """The defense that a record names."""
    defense = DEFENSES.parse(about.made_by)
    if not isinstance(defense, Csvar):
        raise DoesNotFit(f"what {defense.name} has made cannot be undone")
    return defense
