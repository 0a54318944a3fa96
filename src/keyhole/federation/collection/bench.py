"""One picture at a time: its versions made, or the picture made of a version again.

The blocks of picture ``p`` in epoch ``e`` are shuffled by random numbers that a keyed hash gives
for (its path, a keyed hash of its pixels, e): a picture that changes, or comes twice, is never
shuffled alike.
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
from keyhole.data.versions import Picture, epoch_folder, version_name
from keyhole.defenses.csvar import Csvar
from keyhole.defenses.regions import region_side, sensitive
from keyhole.errors import RunFolderError
from keyhole.federation.collection.key import SiteKey
from keyhole.federation.collection.places import LeftOut, shown, write_whole
from keyhole.federation.collection.raster import Raster, Unusable, read_raster


@dataclass(frozen=True)
class Order:
    """A picture that lacks versions; ``known`` is what is on record of it."""

    source: str
    stamp: str
    known: Picture | None


@dataclass(frozen=True)
class Cipher:
    """CSVAR by a key."""

    key: SiteKey
    defense: Csvar

    def check_of(self, source: str, raster: Raster) -> str:
        """Tells whether a picture is the one that was there, bit for bit."""
        return self.key.mark("pixels", os.fsencode(source), raster.content())

    def hint(self, source: str, check: str, fine: Tensor) -> str:
        """Which regions have the finer blocks, veiled."""
        bits = np.packbits(fine.numpy().ravel()).tobytes()
        return self.key.veiled(bits, place("regions", source, check)).hex()

    def fine(self, picture: Picture) -> Tensor:
        """The inverse of :meth:`hint`: bool ``[1, rows, columns]``."""
        rows, columns = region_grid(picture.size)
        veiled = bytes.fromhex(picture.hint)
        clear = self.key.veiled(veiled, place("regions", picture.source, picture.check))
        bits = np.unpackbits(np.frombuffer(clear, np.uint8), count=rows * columns)
        return torch.from_numpy(bits.astype(bool)).view(1, rows, columns)

    def shuffled(self, planes: Tensor, fine: Tensor, source: str, check: str, epoch: int) -> Tensor:
        draws = self.draws(planes, source, check, epoch)
        return self.defense.plan(planes, draws, fine).apply(planes)

    def restored(self, version: Raster, picture: Picture, epoch: int) -> Raster:
        planes = version.planes()
        draws = self.draws(planes, picture.source, picture.check, epoch)
        plan = self.defense.plan(planes, draws, self.fine(picture))
        return version.with_planes(plan.undo(planes))

    def draws(self, planes: Tensor, source: str, check: str, epoch: int) -> Tensor:
        where = place(f"epoch {epoch}", source, check)
        return self.key.numbers(where, self.defense.needed(planes))[None]


def place(what: str, source: str, check: str) -> str:
    """A place in the work, for which the key gives random numbers."""
    return f"{what}\n{check}\n{source}"


def region_grid(size: Size) -> tuple[int, int]:
    """Rows and columns of regions, partial ones too."""
    side = region_side(*size)
    return -(-size[0] // side), -(-size[1] // side)


@dataclass(frozen=True)
class Shuffler:
    """Makes the versions that a picture lacks."""

    source: Path
    out: Path
    cipher: Cipher
    epochs: int

    def __call__(self, order: Order) -> Picture | LeftOut:
        try:
            raster = read_raster(self.source / order.source)
        except Unusable as error:
            return LeftOut(order.source, str(error))
        planes = raster.planes()
        fine = sensitive(planes)
        check = self.cipher.check_of(order.source, raster)
        known = order.known
        unchanged = known is not None and known.check == check
        count = max(self.epochs, len(known.lengths) if known else 0)
        lengths = []
        for epoch in range(1, count + 1):
            file = made_file(self.out, epoch, order.source)
            if known and unchanged and is_there(file, known, epoch):
                lengths.append(known.lengths[epoch - 1])
                continue
            moved = self.cipher.shuffled(planes, fine, order.source, check, epoch)
            lengths.append(put(file, raster.with_planes(moved), replace=known is not None))
        return Picture(
            source=order.source,
            mode=raster.mode,
            size=raster.size,
            check=check,
            stamp=order.stamp,
            hint=self.cipher.hint(order.source, check, fine),
            lengths=tuple(lengths),
        )


@dataclass(frozen=True)
class Restorer:
    """Makes a picture of the first of its versions that gives it back bit for bit."""

    versions: Path
    out: Path
    cipher: Cipher

    def __call__(self, picture: Picture) -> bool | LeftOut:
        """True: it was written; False: it was there."""
        target = self.out / picture.file
        if os.path.lexists(target):
            return False if self.is_original(target, picture) else in_the_way(picture)
        original = next(self.originals(picture), None)
        if original is None:
            return LeftOut(picture.source, "none of its versions gives the original back")
        put(target, original, replace=False)
        return True

    def originals(self, picture: Picture) -> Iterator[Raster]:
        for epoch in range(1, len(picture.lengths) + 1):
            version = usable(made_file(self.versions, epoch, picture.source))
            if version is None or (version.mode, version.size) != (picture.mode, picture.size):
                continue
            if not is_hint(picture.hint, picture.size):
                continue
            original = self.cipher.restored(version, picture, epoch)
            if self.cipher.check_of(picture.source, original) == picture.check:
                yield original

    def is_original(self, file: Path, picture: Picture) -> bool:
        found = usable(file)
        return found is not None and self.cipher.check_of(picture.source, found) == picture.check


def in_the_way(picture: Picture) -> LeftOut:
    return LeftOut(picture.source, f"another {shown(Path(picture.file))} is there, and stays")


def is_hint(text: str, size: Size) -> bool:
    """Whether a hint is as long as a picture's regions ask for, and hex digits all through."""
    rows, columns = region_grid(size)
    return len(text) == 2 * -(-rows * columns // 8) and not set(text) - set("0123456789abcdef")


def usable(file: Path) -> Raster | None:
    """A picture that was written here before; None where it is gone or broken."""
    try:
        return read_raster(file)
    except Unusable:
        return None


def made_file(root: Path, epoch: int, source: str) -> Path:
    return epoch_folder(root, epoch) / version_name(source)


def is_there(file: Path, known: Picture, epoch: int) -> bool:
    """Whether a version is on record, and its file as long as it was."""
    if epoch > len(known.lengths):
        return False
    try:
        return file.stat().st_size == known.lengths[epoch - 1]
    except OSError:
        return False


def all_there(root: Path, known: Picture, epochs: int) -> bool:
    """Whether no version for the first ``epochs`` is missing, nor what undoing them needs."""
    return is_hint(known.hint, known.size) and all(
        is_there(made_file(root, epoch, known.source), known, epoch)
        for epoch in range(1, epochs + 1)
    )


def put(file: Path, raster: Raster, *, replace: bool) -> int:
    """Writes a picture and returns its length; one that lies there must show the same."""
    if not replace and os.path.lexists(file):
        found = usable(file)
        if found is None or found.content() != raster.content():
            raise RunFolderError(f"{shown(file)} is in the way: move it elsewhere")
        return file.stat().st_size
    content = raster.png()
    write_whole(file, content)
    return len(content)
