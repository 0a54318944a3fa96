"""Versions give their originals back, bit for bit."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keyhole.errors import RunFolderError
from obfuscated_folders import (
    PICTURES,
    assert_restored,
    hash_files,
    obfuscate_photos,
    restore_photos,
)


def test_a_restoration_goes_on_where_it_stopped(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key)
    restore_photos(photos, key)
    (tmp_path / "back" / "one.png").unlink()
    (tmp_path / "back" / ".4711.half").write_bytes(b"left by a kill")
    before = (tmp_path / "back" / "cat" / "rgb.png").stat().st_mtime_ns
    work = restore_photos(photos, key)
    assert (work.done, work.already_done) == (1, PICTURES - 1)
    assert (tmp_path / "back" / "cat" / "rgb.png").stat().st_mtime_ns == before
    assert not list((tmp_path / "back").rglob("*.half"))
    assert_restored(photos)


def test_a_restoration_writes_nothing_over(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key)
    (tmp_path / "back" / "cat").mkdir(parents=True)
    shutil.copy(photos / "one.png", tmp_path / "back" / "cat" / "rgb.png")
    work = restore_photos(photos, key)
    assert [one.file for one in work.skipped] == ["cat/rgb.png"]
    assert "is not overwritten" in work.skipped[0].why
    assert hash_files(tmp_path / "back")["cat/rgb.png"] == hash_files(photos)["one.png"]
    (tmp_path / "back" / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds other files"):
        restore_photos(photos, key)


def test_any_version_that_is_left_serves(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key, epochs=3)
    out = tmp_path / "out"
    shutil.rmtree(out / "epoch-001" / "cat")
    (out / "epoch-002" / "cat" / "rgb.png").write_bytes(b"spoilt")
    shutil.copy(out / "epoch-001" / "one.png", out / "epoch-002" / "cat" / "photo.jpg.png")
    assert restore_photos(photos, key).skipped == ()
    assert_restored(photos)


def test_a_picture_that_was_tampered_with_is_not_restored(
    photos: Path, key: Path, tmp_path: Path
) -> None:
    obfuscate_photos(photos, key)
    for epoch in ("epoch-001", "epoch-002"):
        file = tmp_path / "out" / epoch / "cat" / "rgb.png"
        pixels = np.asarray(Image.open(file)).copy()
        pixels[0, 0, 0] ^= 1
        Image.fromarray(pixels).save(file)
    work = restore_photos(photos, key)
    assert [one.file for one in work.skipped] == ["cat/rgb.png"]
    assert not (tmp_path / "back" / "cat" / "rgb.png").exists()
