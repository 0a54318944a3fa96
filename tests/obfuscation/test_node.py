"""A folder of pictures becomes versions, one key and one manifest."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keyhole.data.versions import (
    MANIFEST,
    read_manifest,
    version_name,
)
from keyhole.defenses import Csvar
from keyhole.errors import BadValue, DataMissing, KeyholeError, RunFolderError
from keyhole.obfuscation import obfuscate, restore
from keyhole.obfuscation.raster import read_raster
from obfuscated_folders import (
    PICTURES,
    assert_restored,
    hash_files,
    obfuscate_photos,
    restore_photos,
)


@pytest.mark.parametrize("channels", ["apart", "mixed", "together"])
def test_every_kind_of_picture_is_hidden_and_comes_back(
    photos: Path, key: Path, channels: str
) -> None:
    before = hash_files(photos)
    work = obfuscate_photos(photos, key, defense=Csvar(channels=channels))
    assert (work.images, work.done, work.already_done, work.skipped) == (PICTURES, PICTURES, 0, ())
    out = photos.parent / "out"
    names = sorted(version_name(name) for name in before)
    expected = {f"epoch-00{e}/{name}" for e in (1, 2) for name in names} | {MANIFEST}
    assert set(hash_files(out)) == expected
    assert restore_photos(photos, key).done == PICTURES
    assert_restored(photos)
    assert hash_files(photos) == before


def test_versions_differ_from_the_original_and_from_each_other(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    out = photos.parent / "out"
    original = read_raster(photos / "cat" / "rgb.png")
    one, two = (read_raster(out / f"epoch-00{e}" / "cat" / "rgb.png") for e in (1, 2))
    assert original.mode == one.mode == two.mode
    assert not np.array_equal(one.pixels, original.pixels)
    assert not np.array_equal(one.pixels, two.pixels)
    for plane in range(3):
        expected = np.sort(original.pixels[..., plane].ravel())
        assert np.array_equal(np.sort(one.pixels[..., plane].ravel()), expected)


def test_two_pictures_of_the_same_pixels_are_shuffled_apart(photos: Path, key: Path) -> None:
    shutil.copy(photos / "cat" / "rgb.png", photos / "dog" / "twin.png")
    obfuscate_photos(photos, key, epochs=1)
    out = photos.parent / "out" / "epoch-001"
    assert hash_files(out)["cat/rgb.png"] != hash_files(out)["dog/twin.png"]
    record = read_manifest(photos.parent / "out").images
    assert record["cat/rgb.png"].check != record["dog/twin.png"].check


def test_the_key_decides_and_only_the_key(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key)
    obfuscate(photos, tmp_path / "again", epochs=2, key_file=key, jobs=2)
    assert hash_files(tmp_path / "again") == hash_files(tmp_path / "out")
    (tmp_path / "other.key").write_text(bytes(range(1, 33)).hex())
    obfuscate(photos, tmp_path / "other", epochs=2, key_file=tmp_path / "other.key", jobs=1)
    ours, theirs = hash_files(tmp_path / "out"), hash_files(tmp_path / "other")
    alike = [name for name in ours if ours[name] == theirs[name]]
    assert sorted(alike) == ["epoch-001/one.png", "epoch-002/one.png"]  # a single pixel


def test_the_record_tells_nothing_of_the_key_the_pixels_or_the_files(
    photos: Path, key: Path
) -> None:
    obfuscate_photos(photos, key)
    text = (photos.parent / "out" / MANIFEST).read_text()
    assert key.read_text() not in text
    for file in (f for f in photos.rglob("*") if f.is_file()):
        found = file.stat()
        pixels = read_raster(file).pixels.tobytes()
        for told in (file.read_bytes(), pixels):
            assert hashlib.sha256(told).hexdigest()[:32] not in text
        assert str(found.st_mtime_ns)[:10] not in text
    first, *lines = [json.loads(line) for line in text.splitlines()]
    assert first["made_by"] == "csvar(channels='apart')"
    assert first["complete"] is True
    assert [line["source"] for line in lines] == sorted(line["source"] for line in lines)


def test_a_key_is_made_where_there_is_none(photos: Path, tmp_path: Path) -> None:
    key = tmp_path / "new.key"
    assert obfuscate_photos(photos, key).key_created
    assert not obfuscate_photos(photos, key).key_created
    restore_photos(photos, key)
    assert_restored(photos)


def test_the_same_again_does_nothing(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    out = photos.parent / "out"
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    work = obfuscate_photos(photos, key)
    assert (work.done, work.already_done) == (0, PICTURES)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == times
    assert obfuscate_photos(photos, key, epochs=1).done == 0


def test_what_is_missing_is_made_again_and_nothing_else(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    out = photos.parent / "out"
    before = hash_files(out)
    (out / "epoch-002" / "cat" / "rgb.png").unlink()
    cut = out / "epoch-001" / "one.png"
    cut.write_bytes(cut.read_bytes()[:-5])
    (out / "epoch-001" / ".4711.half").write_bytes(b"left by a kill")
    kept = out / "epoch-001" / "cat" / "rgb.png"
    stamp = kept.stat().st_mtime_ns
    assert obfuscate_photos(photos, key).done == 2
    assert hash_files(out) == before
    assert kept.stat().st_mtime_ns == stamp


def test_more_epochs_are_added(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key, epochs=1)
    before = hash_files(tmp_path / "out")
    assert obfuscate_photos(photos, key, epochs=3).done == PICTURES
    obfuscate(photos, tmp_path / "at once", epochs=3, key_file=key, jobs=1)
    after = hash_files(tmp_path / "out")
    assert after == hash_files(tmp_path / "at once")
    assert {name: h for name, h in after.items() if name in before and name != MANIFEST} == {
        name: h for name, h in before.items() if name != MANIFEST
    }
    obfuscate_photos(photos, key, epochs=2)
    assert read_manifest(tmp_path / "out").epochs == 3


def test_new_and_changed_pictures_are_noticed(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    out = photos.parent / "out"
    before = hash_files(out)
    shutil.copy(photos / "cat" / "rgb.png", photos / "new.png")
    Image.fromarray(np.full((9, 9, 3), 77, np.uint8)).save(photos / "one.png")
    assert obfuscate_photos(photos, key, epochs=1).done == 2
    changed = {name for name, h in hash_files(out).items() if before.get(name) != h}
    ones = {"epoch-001/one.png", "epoch-002/one.png"}
    assert changed == {"epoch-001/new.png", *ones, MANIFEST}
    restore_photos(photos, key)
    assert_restored(photos)


def test_a_touched_file_is_looked_at_but_its_versions_stay(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    out = photos.parent / "out"
    version = out / "epoch-001" / "one.png"
    before, stamp = hash_files(out / "epoch-001"), version.stat().st_mtime_ns
    os.utime(photos / "one.png", (1, 1))
    assert obfuscate_photos(photos, key).done == 1
    assert (hash_files(out / "epoch-001"), version.stat().st_mtime_ns) == (before, stamp)
    assert obfuscate_photos(photos, key).done == 0


def test_pictures_whose_source_is_gone_stay_on_record(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    kept = photos.parent / "kept"
    shutil.copytree(photos, kept)
    for folder in ("cat", "dog"):
        shutil.rmtree(photos / folder)
    assert obfuscate_photos(photos, key, epochs=3).images == 1
    assert len(read_manifest(photos.parent / "out").images) == PICTURES
    restore_photos(photos, key)
    assert_restored(kept)


def test_unusable_pictures_are_left_out_and_tried_again(photos: Path, key: Path) -> None:
    (photos / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (photos / "dead.png").symlink_to("nowhere")
    Image.new("CMYK", (8, 8)).save(photos / "cat" / "print.jpg")
    (photos / ("a" * 250 + ".jpg")).write_bytes(b"")
    work = obfuscate_photos(photos, key)
    assert [one.file[:20] for one in work.skipped] == [
        "a" * 20,
        "cat/broken.png",
        "cat/print.jpg",
        "dead.png",
    ]
    assert all(one.why and "\n" not in one.why for one in work.skipped)
    assert (work.done, work.already_done) == (PICTURES, 0)
    Image.new("L", (8, 8)).save(photos / "cat" / "broken.png")
    assert (obfuscate_photos(photos, key).done, len(obfuscate_photos(photos, key).skipped)) == (
        1,
        3,
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_left_out(photos: Path, key: Path) -> None:
    (photos / "one.png").chmod(0)
    assert [one.file for one in obfuscate_photos(photos, key).skipped] == ["one.png"]


def test_names_that_are_no_text_are_kept(photos: Path, key: Path) -> None:
    name = os.fsdecode(b"dog/\xff\xfe odd.png")
    shutil.copy(photos / "one.png", photos / name)
    assert obfuscate_photos(photos, key).done == PICTURES + 1
    assert obfuscate_photos(photos, key).done == 0
    restore_photos(photos, key)
    assert_restored(photos)


def test_another_keys_or_another_defenses_work_is_not_touched(
    photos: Path, key: Path, tmp_path: Path
) -> None:
    obfuscate_photos(photos, key)
    before = hash_files(tmp_path)
    with pytest.raises(DataMissing, match=r"missing\.key does not exist: name the one that"):
        obfuscate_photos(photos, tmp_path / "missing.key")
    (tmp_path / "other.key").write_text(bytes(range(1, 33)).hex())
    for job in (obfuscate_photos, restore_photos):
        with pytest.raises(RunFolderError, match=r"another key than .*other\.key"):
            job(photos, tmp_path / "other.key")
    with pytest.raises(RunFolderError, match=r"was made by csvar.*'apart'.*, not .*'mixed'"):
        obfuscate_photos(photos, key, defense=Csvar(channels="mixed"))
    (tmp_path / "other.key").unlink()
    assert hash_files(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epochs": 0}, "epochs: every image needs at least one version"),
        ({"epochs": 1, "jobs": 0}, "jobs: at least one process is needed"),
    ],
)
def test_bad_numbers_are_refused(
    photos: Path, tmp_path: Path, arguments: dict[str, int], words: str
) -> None:
    with pytest.raises(BadValue, match=words):
        obfuscate_photos(photos, tmp_path / "new.key", **arguments)
    assert sorted(os.listdir(tmp_path)) == ["photos"]


def strangers(out: Path) -> None:
    out.mkdir()
    (out / "mine.txt").write_text("mine")


def a_link(out: Path) -> None:
    (out / MANIFEST).parent.mkdir()
    first = {"keyhole": "versions", "format": 1, "made_by": "", "key_check": "", "complete": True}
    (out / MANIFEST).write_text(json.dumps(first) + "\n")
    (out / "epoch-001").symlink_to(out.parent / "photos")


def no_record(out: Path) -> None:
    out.mkdir()
    (out / MANIFEST).write_text("{}\n")


def a_collision(out: Path) -> None:
    photos = out.parent / "photos" / "cat"
    shutil.copy(photos / "photo.jpg", photos / "photo.jpg.png")


def no_pictures(out: Path) -> None:
    for folder in ("cat", "dog"):
        shutil.rmtree(out.parent / "photos" / folder)
    (out.parent / "photos" / "one.png").unlink()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (strangers, r"holds other files \(mine\.txt\)"),
        (a_link, "epoch-001 is a link"),
        (no_record, "is not a manifest"),
        (a_collision, "would both become"),
        (no_pictures, "no images under"),
    ],
)
def test_refusals_leave_everything_as_it_was(
    photos: Path, tmp_path: Path, prepare: object, words: str
) -> None:
    prepare(tmp_path / "out")
    before = hash_files(tmp_path)
    with pytest.raises(KeyholeError, match=words) as raised:
        obfuscate_photos(photos, tmp_path / "new.key")
    assert "\n" not in str(raised.value)
    assert hash_files(tmp_path) == before


def test_a_file_in_the_way_is_never_written_over(photos: Path, key: Path) -> None:
    out = photos.parent / "out"
    obfuscate_photos(photos, key)
    first, *lines = (out / MANIFEST).read_text().splitlines()
    kept = [line for line in lines if "cat/rgb.png" not in line]
    (out / MANIFEST).write_text("\n".join([first, *kept]) + "\n")
    assert obfuscate_photos(photos, key).done == 1  # what lies there shows the same
    (out / MANIFEST).write_text("\n".join([first, *kept]) + "\n")
    shutil.copy(photos / "cat" / "rgb.png", out / "epoch-001" / "cat" / "rgb.png")
    before = hash_files(out / "epoch-001")
    with pytest.raises(RunFolderError, match=r"cat/rgb\.png is in the way"):
        obfuscate_photos(photos, key)
    assert hash_files(out / "epoch-001") == before


def test_shuffled_folders_are_not_shuffled_again(photos: Path, key: Path, tmp_path: Path) -> None:
    obfuscate_photos(photos, key)
    with pytest.raises(BadValue, match="pass --restore"):
        obfuscate(tmp_path / "out", tmp_path / "twice", epochs=1, key_file=key)
    with pytest.raises(DataMissing, match="holds no shuffled versions"):
        restore(photos, tmp_path / "back", key_file=key)
