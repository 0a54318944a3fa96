"""The collection node's two jobs: a folder of pictures shuffled, and restored."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.atomic import sweep
from keyhole.data.versions import (
    About,
    Manifest,
    Picture,
    add_to_manifest,
    has_versions,
    read_about,
    record_lines,
    write_manifest,
)
from keyhole.defenses import Csvar
from keyhole.errors import BadValue, DataMissing
from keyhole.federation.collection.bench import Cipher, Order, Restorer, Shuffler, all_there
from keyhole.federation.collection.crew import Progress, crew_size, watched
from keyhole.federation.collection.key import SiteKey
from keyhole.federation.collection.places import (
    LeftOut,
    check_apart,
    check_names,
    find_pictures,
    has_room_for,
    shown,
)
from keyhole.federation.collection.record import (
    Record,
    check_defense,
    check_key,
    check_strangers,
    defense_of,
    key_of,
    opened,
    read_record,
    unrecorded,
)


@dataclass(frozen=True)
class Work:
    """What became of a job."""

    out: Path
    pictures: int
    """In the source folder; of a restoration, on record."""
    versions: int
    """Of every picture."""
    done: int
    """Pictures worked on; all others were there already, or are left out."""
    left_out: tuple[LeftOut, ...]
    seconds: float
    others: int = 0
    """Files in the source folder that are no pictures."""
    key_made: bool = False
    complete: bool = True
    """Whether the versions had all been made, of a restoration."""
    marked: bool = True
    """Whether a change of the record would show, of a restoration."""
    changes: str = ""
    """What was done to the record since it was written, in words."""

    @property
    def whole(self) -> bool:
        """Whether every picture was dealt with, and nothing of the record was changed."""
        return self.complete and not self.left_out and not self.changes

    @property
    def were_there(self) -> int:
        return self.pictures - self.done - len(self.left_out)

    def to_json(self) -> dict[str, Any]:
        return {
            "out": str(self.out),
            "pictures": self.pictures,
            "versions": self.versions,
            "done": self.done,
            "were_there": self.were_there,
            "left_out": [dataclasses.asdict(one) for one in self.left_out],
            "other_files": self.others,
            "seconds": round(self.seconds, 3),
            "key_made": self.key_made,
            "complete": self.complete,
            "marked": self.marked,
            "changes": self.changes,
        }


def obfuscate(
    source: Path,
    out: Path,
    *,
    epochs: int,
    key_file: Path,
    defense: Csvar | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Work:
    """Every picture below ``source`` in ``epochs`` shuffled versions below ``out``.

    What is there already is not made again: the same call continues an interrupted one, makes what
    is new or has changed, and adds epochs. A key is made where ``key_file`` does not exist yet.
    """
    began, size = time.perf_counter(), crew_size(jobs)
    if epochs < 1:
        raise BadValue(f"epochs: every picture needs a version at least, got {epochs}")
    check_apart(source, out, key_file)
    if has_versions(source):
        raise BadValue(f"{shown(source)} holds shuffled versions: pass --restore to undo them")
    found = find_pictures(source, out)
    if not found.pictures:
        raise DataMissing(f"no images under {shown(source)}")
    known = opened(out)
    if known is None:
        check_names(found.pictures)
    key, stretch, key_made = key_of(key_file, out, known)
    cipher = Cipher(key, defense or Csvar())
    about = About(str(cipher.defense), key.check, stretch=stretch)
    record = Record(Manifest(about, {}))
    if known is not None:
        check_key(known, key, out, key_file)
        check_defense(known, about, out)
        record = read_record(out, known, key)
        check_names({*found.pictures, *record.manifest.pictures})
    believed = record.manifest.pictures
    orders, left_out = missing(source, out, found.pictures, record.manifest, key, epochs)
    made: list[Picture] = []
    if orders or not record.manifest.about.complete or record.changes or not record.marked:
        sweep(out)
        write_manifest(out, Manifest(about, believed), key.mark)
        shuffler = Shuffler(source, out, cipher, epochs)
        for result in watched(shuffler, orders, "shuffling", size, progress):
            if isinstance(result, LeftOut):
                left_out.append(result)
            else:
                made.append(result)
                add_to_manifest(out, [result], key.mark, number=len(believed) + len(made))
        whole = {**believed, **{picture.source: picture for picture in made}}
        about = dataclasses.replace(about, complete=True)
        write_manifest(out, Manifest(about, whole), key.mark)
    return Work(
        out=out,
        pictures=len(found.pictures),
        versions=epochs,
        done=len(made),
        left_out=tuple(sorted(left_out)),
        seconds=time.perf_counter() - began,
        others=found.others,
        key_made=key_made,
        changes=record.changes.in_words(),
    )


def restore(
    versions: Path,
    out: Path,
    *,
    key_file: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Work:
    """The originals of what :func:`obfuscate` wrote, as PNG files with exactly their pixels.

    A file that is there is never written over. The same call continues an interrupted one.
    """
    began, size = time.perf_counter(), crew_size(jobs)
    check_apart(versions, out, key_file)
    if not has_versions(versions):
        raise DataMissing(
            f"{shown(versions)} holds no shuffled versions: name what `keyhole obfuscate` wrote"
        )
    about = read_about(versions, record_lines(versions)[0])
    key, _, _ = key_of(key_file, versions, about)
    check_key(about, key, versions, key_file)
    cipher = Cipher(key, defense_of(about))
    record = read_record(versions, about, key)
    pictures = list(record.manifest.pictures.values())
    check_names(record.manifest.pictures)
    check_strangers(out, {picture.file for picture in pictures})
    sweep(out)
    restorer = Restorer(versions, out, cipher)
    results = list(watched(restorer, pictures, "restoring", size, progress))
    left_out = [*record.spoilt, *(r for r in results if isinstance(r, LeftOut))]
    return Work(
        out=out,
        pictures=record.count,
        versions=record.manifest.epochs,
        done=results.count(True),
        left_out=tuple(sorted(left_out)),
        seconds=time.perf_counter() - began,
        complete=about.complete,
        marked=record.marked,
        changes=record.changes.in_words() or unrecorded(versions, record),
    )


def missing(
    source: Path,
    out: Path,
    pictures: Sequence[str],
    record: Manifest,
    key: SiteKey,
    epochs: int,
) -> tuple[list[Order], list[LeftOut]]:
    """The pictures that are new, have changed or lack versions; and those that cannot be used."""
    orders: list[Order] = []
    left_out: list[LeftOut] = []
    for name in pictures:
        try:
            found = (source / name).stat()
        except OSError as error:
            left_out.append(LeftOut(name, f"it cannot be read ({error.strerror})"))
            continue
        if not has_room_for(name):
            left_out.append(LeftOut(name, "its name is too long with .png behind it: shorten it"))
            continue
        stamp = key.mark("file", f"{found.st_size} {found.st_mtime_ns} {name!r}".encode())
        known = record.pictures.get(name)
        if known is None or known.stamp != stamp or not all_there(out, known, epochs):
            orders.append(Order(name, stamp, known))
    return orders, left_out
