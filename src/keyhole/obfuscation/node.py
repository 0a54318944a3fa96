"""The two jobs of a collection node: shuffle a folder of images, and restore it."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.atomic import remove_unfinished
from keyhole.data.versions import (
    ImageEntry,
    Manifest,
    ManifestHeader,
    append_to_manifest,
    has_versions,
    read_manifest_header,
    read_manifest_lines,
    write_manifest,
)
from keyhole.defenses import Csvar
from keyhole.errors import BadValue, DataMissing
from keyhole.obfuscation.cipher import Cipher, Restorer, Shuffler, ShuffleTask, has_all_versions
from keyhole.obfuscation.folders import (
    SkippedImage,
    check_paths,
    check_result_names,
    find_images,
    printable_path,
    result_name_fits,
)
from keyhole.obfuscation.key import SiteKey
from keyhole.obfuscation.manifest import (
    VerifiedManifest,
    check_defense,
    check_key,
    check_no_other_files,
    describe_unlisted_images,
    load_or_make_key,
    parse_defense,
    read_existing_header,
    verify_manifest,
)
from keyhole.obfuscation.workers import count_workers, run_with_progress
from keyhole.progress import Progress


@dataclass(frozen=True)
class ObfuscationResult:
    """What :func:`obfuscate` or :func:`restore` did.

    Args:
        out: The folder of the results.
        images: The number of images in the source folder or, when restoring, in the manifest.
        versions: The number of versions of every image.
        done: The number of images processed; all others were done already, or are skipped.
        skipped: Images that could not be processed, and why.
        seconds: How long it took.
        other_files: The number of files in the source folder that are not images.
        key_created: Whether the key file was created.
        complete: When restoring, whether all versions had been made.
        signed: When restoring, whether a change of the manifest can be noticed.
        changes: A text on what was changed in the manifest since it was written.
    """

    out: Path
    images: int
    versions: int
    done: int
    skipped: tuple[SkippedImage, ...]
    seconds: float
    other_files: int = 0
    key_created: bool = False
    complete: bool = True
    signed: bool = True
    changes: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether every image was processed, and nothing in the manifest was changed."""
        return self.complete and not self.skipped and not self.changes

    @property
    def already_done(self) -> int:
        """The number of images that an earlier run had processed."""
        return self.images - self.done - len(self.skipped)

    def to_json(self) -> dict[str, Any]:
        """Returns what ``keyhole obfuscate --json`` prints."""
        return {
            "out": str(self.out),
            "pictures": self.images,
            "versions": self.versions,
            "done": self.done,
            "were_there": self.already_done,
            "left_out": [dataclasses.asdict(one) for one in self.skipped],
            "other_files": self.other_files,
            "seconds": round(self.seconds, 3),
            "key_made": self.key_created,
            "complete": self.complete,
            "marked": self.signed,
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
) -> ObfuscationResult:
    """Writes ``epochs`` shuffled versions of every image in a folder.

    What exists is not made again: the same call continues an interrupted one, processes images that
    are new or have changed, and adds epochs.

    Args:
        source: The folder of images.
        out: The folder for the versions.
        epochs: The number of versions of each image.
        key_file: The file with the secret key; it is created if it does not exist.
        defense: How images are shuffled; None means CSVAR with its defaults.
        jobs: The number of processes; None means one per core.
        progress: Is told how far the work is.
    """
    began, workers = time.perf_counter(), count_workers(jobs)
    if epochs < 1:
        raise BadValue(f"epochs: every image needs at least one version, got {epochs}")
    check_paths(source, out, key_file)
    if has_versions(source):
        raise BadValue(
            f"{printable_path(source)} holds shuffled versions: pass --restore to undo them"
        )
    found = find_images(source, out)
    if not found.images:
        raise DataMissing(f"no images under {printable_path(source)}")
    known = read_existing_header(out)
    if known is None:
        check_result_names(found.images)
    key, stretch, key_created = load_or_make_key(key_file, out, known)
    cipher = Cipher(key, defense or Csvar())
    header = ManifestHeader(str(cipher.defense), key.fingerprint, stretch=stretch)
    verified = VerifiedManifest(Manifest(header, {}))
    if known is not None:
        check_key(known, key, out, key_file)
        check_defense(known, header, out)
        verified = verify_manifest(out, known, key)
        check_result_names({*found.images, *verified.manifest.images})
    before = verified.manifest.images
    tasks, skipped = find_tasks(source, out, found.images, verified.manifest, key, epochs)
    made: list[ImageEntry] = []
    complete = verified.manifest.header.complete and not verified.changes and verified.signed
    if tasks or not complete:
        remove_unfinished(out)
        write_manifest(out, Manifest(header, before), key.sign)
        shuffler = Shuffler(source, out, cipher, epochs)
        for result in run_with_progress(shuffler, tasks, "shuffling", workers, progress):
            if isinstance(result, SkippedImage):
                skipped.append(result)
            else:
                made.append(result)
                append_to_manifest(out, [result], key.sign, number=len(before) + len(made))
        after = {**before, **{entry.source: entry for entry in made}}
        header = dataclasses.replace(header, complete=True)
        write_manifest(out, Manifest(header, after), key.sign)
    return ObfuscationResult(
        out=out,
        images=len(found.images),
        versions=epochs,
        done=len(made),
        skipped=tuple(sorted(skipped)),
        seconds=time.perf_counter() - began,
        other_files=found.other_files,
        key_created=key_created,
        changes=verified.changes.describe(),
    )


def restore(
    versions: Path,
    out: Path,
    *,
    key_file: Path,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ObfuscationResult:
    """Restores the originals of what :func:`obfuscate` wrote, as PNG files with the same pixels.

    An existing file is never overwritten. The same call continues an interrupted one.

    Args:
        versions: The folder that :func:`obfuscate` wrote.
        out: The folder for the originals.
        key_file: The file with the secret key.
        jobs: The number of processes; None means one per core.
        progress: Is told how far the work is.
    """
    began, workers = time.perf_counter(), count_workers(jobs)
    check_paths(versions, out, key_file)
    if not has_versions(versions):
        raise DataMissing(
            f"{printable_path(versions)} holds no shuffled versions: name a folder that `keyhole "
            "obfuscate` wrote"
        )
    header = read_manifest_header(versions, read_manifest_lines(versions)[0])
    key, _, _ = load_or_make_key(key_file, versions, header)
    check_key(header, key, versions, key_file)
    cipher = Cipher(key, parse_defense(header))
    verified = verify_manifest(versions, header, key)
    entries = list(verified.manifest.images.values())
    check_result_names(verified.manifest.images)
    check_no_other_files(out, {entry.file for entry in entries})
    remove_unfinished(out)
    restorer = Restorer(versions, out, cipher)
    results = list(run_with_progress(restorer, entries, "restoring", workers, progress))
    skipped = [*verified.invalid, *(r for r in results if isinstance(r, SkippedImage))]
    return ObfuscationResult(
        out=out,
        images=verified.count,
        versions=verified.manifest.epochs,
        done=results.count(True),
        skipped=tuple(sorted(skipped)),
        seconds=time.perf_counter() - began,
        complete=header.complete,
        signed=verified.signed,
        changes=verified.changes.describe() or describe_unlisted_images(versions, verified),
    )


def find_tasks(
    source: Path,
    out: Path,
    images: Sequence[str],
    manifest: Manifest,
    key: SiteKey,
    epochs: int,
) -> tuple[list[ShuffleTask], list[SkippedImage]]:
    """Returns the images that are new, have changed or lack versions, and those to skip."""
    tasks: list[ShuffleTask] = []
    skipped: list[SkippedImage] = []
    for name in images:
        try:
            found = (source / name).stat()
        except OSError as error:
            skipped.append(SkippedImage(name, f"it cannot be read ({error.strerror})"))
            continue
        if not result_name_fits(name):
            skipped.append(
                SkippedImage(name, "its name is too long once .png is added: shorten it")
            )
            continue
        stamp = key.sign("file", f"{found.st_size} {found.st_mtime_ns} {name!r}".encode())
        known = manifest.images.get(name)
        if known is None or known.stamp != stamp or not has_all_versions(out, known, epochs):
            tasks.append(ShuffleTask(name, stamp, known))
    return tasks, skipped
