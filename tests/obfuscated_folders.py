"""Shuffles and restores a folder of pictures, and compares the files."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from keyhole.data.versions import (
    version_name,
)
from keyhole.obfuscation import ObfuscationResult, obfuscate, restore
from keyhole.obfuscation.raster import read_raster

PICTURES = 9


def obfuscate_photos(
    photos: Path, key: Path, epochs: int = 2, **options: object
) -> ObfuscationResult:
    options = {"jobs": 1, **options}
    return obfuscate(photos, photos.parent / "out", epochs=epochs, key_file=key, **options)


def restore_photos(photos: Path, key: Path, **options: object) -> ObfuscationResult:
    options = {"jobs": 1, **options}
    out = photos.parent
    return restore(out / "out", out / "back", key_file=key, **options)


def hash_files(root: Path) -> dict[str, str]:
    """Every file below a folder, and a hash of it."""
    return {
        file.relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in root.rglob("*")
        if file.is_file()
    }


def assert_restored(photos: Path) -> None:
    originals = [file for file in photos.rglob("*") if file.is_file()]
    assert originals
    for original in originals:
        back = photos.parent / "back" / version_name(original.relative_to(photos).as_posix())
        one, two = read_raster(original), read_raster(back)
        assert one.mode == two.mode
        assert np.array_equal(one.pixels, two.pixels), original
