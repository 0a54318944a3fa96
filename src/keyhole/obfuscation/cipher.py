"""Shuffles one image at a time by a key, and restores it from a version.

The blocks of image ``p`` in epoch ``e`` are shuffled by random numbers from a keyed hash of (its
path, a keyed hash of its pixels, e). So an image that changes, or comes twice, is never shuffled
the same way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from keyhole.data.image_set import Size
from keyhole.data.versions import ImageEntry, epoch_folder, version_name
from keyhole.defenses.csvar import Csvar
from keyhole.defenses.regions import find_sensitive_regions, region_side
from keyhole.errors import RunFolderError
from keyhole.obfuscation.folders import SkippedImage, printable_path, write_atomically
from keyhole.obfuscation.key import SiteKey
from keyhole.obfuscation.raster import Raster, UnusableImage, read_raster


@dataclass(frozen=True)
class ShuffleTask:
    """An image that lacks versions; ``known`` is its entry in the manifest, if it has one."""

    source: str
    stamp: str
    known: ImageEntry | None


@dataclass(frozen=True)
class Cipher:
    """CSVAR with random numbers from a key."""

    key: SiteKey
    defense: Csvar

    def pixel_check(self, source: str, raster: Raster) -> str:
        """Returns a keyed hash of an image's path and pixels."""
        return self.key.sign("pixels", os.fsencode(source), raster.content())

    def encrypt_regions(self, source: str, check: str, fine: Tensor) -> str:
        """Returns, encrypted, which regions have the finer blocks."""
        bits = np.packbits(fine.numpy().ravel()).tobytes()
        return self.key.xor(bits, stream_name("regions", source, check)).hex()

    def decrypt_regions(self, entry: ImageEntry) -> Tensor:
        """Inverts :meth:`encrypt_regions`: bool ``[1, rows, columns]``."""
        rows, columns = region_grid(entry.size)
        encrypted = bytes.fromhex(entry.hint)
        clear = self.key.xor(encrypted, stream_name("regions", entry.source, entry.check))
        bits = np.unpackbits(np.frombuffer(clear, np.uint8), count=rows * columns)
        return torch.from_numpy(bits.astype(bool)).view(1, rows, columns)

    def shuffle(self, planes: Tensor, fine: Tensor, source: str, check: str, epoch: int) -> Tensor:
        """Returns the shuffled planes ``[1, C, H, W]`` of an image in an epoch."""
        numbers = self.random_numbers(planes, source, check, epoch)
        return self.defense.plan_shuffle(planes, numbers, fine).apply(planes)

    def restore(self, version: Raster, entry: ImageEntry, epoch: int) -> Raster:
        """Returns the original of a version."""
        planes = version.planes()
        numbers = self.random_numbers(planes, entry.source, entry.check, epoch)
        plan = self.defense.plan_shuffle(planes, numbers, self.decrypt_regions(entry))
        return version.with_planes(plan.undo(planes))

    def random_numbers(self, planes: Tensor, source: str, check: str, epoch: int) -> Tensor:
        """Returns the random numbers that shuffle an image in an epoch."""
        name = stream_name(f"epoch {epoch}", source, check)
        return self.key.random_numbers(name, self.defense.count_draws(planes))[None]


def stream_name(what: str, source: str, check: str) -> str:
    """Returns the name of a stream of random numbers: one per image and purpose."""
    return f"{what}\n{check}\n{source}"


def region_grid(size: Size) -> tuple[int, int]:
    """Returns the rows and columns of regions, counting partial ones."""
    side = region_side(*size)
    return -(-size[0] // side), -(-size[1] // side)


@dataclass(frozen=True)
class Shuffler:
    """Makes the versions that an image lacks."""

    source: Path
    out: Path
    cipher: Cipher
    epochs: int

    def __call__(self, task: ShuffleTask) -> ImageEntry | SkippedImage:
        try:
            raster = read_raster(self.source / task.source)
        except UnusableImage as error:
            return SkippedImage(task.source, str(error))
        planes = raster.planes()
        fine = find_sensitive_regions(planes)
        check = self.cipher.pixel_check(task.source, raster)
        known = task.known
        unchanged = known is not None and known.check == check
        count = max(self.epochs, len(known.lengths) if known else 0)
        lengths = []
        for epoch in range(1, count + 1):
            file = version_path(self.out, epoch, task.source)
            if known and unchanged and version_exists(file, known, epoch):
                lengths.append(known.lengths[epoch - 1])
                continue
            shuffled = self.cipher.shuffle(planes, fine, task.source, check, epoch)
            version = raster.with_planes(shuffled)
            lengths.append(write_raster(file, version, replace=known is not None))
        return ImageEntry(
            source=task.source,
            mode=raster.mode,
            size=raster.size,
            check=check,
            stamp=task.stamp,
            hint=self.cipher.encrypt_regions(task.source, check, fine),
            lengths=tuple(lengths),
        )


@dataclass(frozen=True)
class Restorer:
    """Restores an image from the first of its versions that gives it back bit for bit."""

    versions: Path
    out: Path
    cipher: Cipher

    def __call__(self, entry: ImageEntry) -> bool | SkippedImage:
        """Returns True if the image was written, False if it was there already."""
        target = self.out / entry.file
        if os.path.lexists(target):
            return False if self.is_original(target, entry) else skip_existing(entry)
        original = next(self.originals(entry), None)
        if original is None:
            return SkippedImage(entry.source, "none of its versions gives the original back")
        write_raster(target, original, replace=False)
        return True

    def originals(self, entry: ImageEntry) -> Iterator[Raster]:
        """Yields the original once for every intact version."""
        for epoch in range(1, len(entry.lengths) + 1):
            version = read_if_usable(version_path(self.versions, epoch, entry.source))
            if version is None or (version.mode, version.size) != (entry.mode, entry.size):
                continue
            if not is_valid_hint(entry.hint, entry.size):
                continue
            original = self.cipher.restore(version, entry, epoch)
            if self.cipher.pixel_check(entry.source, original) == entry.check:
                yield original

    def is_original(self, file: Path, entry: ImageEntry) -> bool:
        """Returns whether a file shows the original image."""
        found = read_if_usable(file)
        return found is not None and self.cipher.pixel_check(entry.source, found) == entry.check


def skip_existing(entry: ImageEntry) -> SkippedImage:
    name = printable_path(Path(entry.file))
    return SkippedImage(entry.source, f"another {name} exists and is not overwritten")


def is_valid_hint(text: str, size: Size) -> bool:
    """Returns whether a hint has one bit per region of the image, in hex digits."""
    rows, columns = region_grid(size)
    return len(text) == 2 * -(-rows * columns // 8) and not set(text) - set("0123456789abcdef")


def read_if_usable(file: Path) -> Raster | None:
    """Reads an image that was written earlier; returns None if it is gone or broken."""
    try:
        return read_raster(file)
    except UnusableImage:
        return None


def version_path(root: Path, epoch: int, source: str) -> Path:
    return epoch_folder(root, epoch) / version_name(source)


def version_exists(file: Path, known: ImageEntry, epoch: int) -> bool:
    """Returns whether the manifest lists a version and its file still has the same length."""
    if epoch > len(known.lengths):
        return False
    try:
        return file.stat().st_size == known.lengths[epoch - 1]
    except OSError:
        return False


def has_all_versions(root: Path, known: ImageEntry, epochs: int) -> bool:
    """Returns whether an image has a version for each epoch, and the hint to restore them."""
    return is_valid_hint(known.hint, known.size) and all(
        version_exists(version_path(root, epoch, known.source), known, epoch)
        for epoch in range(1, epochs + 1)
    )


def write_raster(file: Path, raster: Raster, *, replace: bool) -> int:
    """Writes an image and returns its length; an existing file must show the same image."""
    if not replace and os.path.lexists(file):
        found = read_if_usable(file)
        if found is None or found.content() != raster.content():
            raise RunFolderError(f"{printable_path(file)} is in the way: move it elsewhere")
        return file.stat().st_size
    content = raster.png()
    write_atomically(file, content)
    return len(content)
