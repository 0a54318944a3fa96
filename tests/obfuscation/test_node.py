from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keyhole.data.versions import (
    MANIFEST,
    Manifest,
    append_to_manifest,
    read_manifest,
    version_name,
    write_manifest,
)
from keyhole.defenses import Csvar
from keyhole.errors import BadValue, DataMissing, KeyholeError, RunFolderError
from keyhole.obfuscation import ObfuscationResult, SiteKey, obfuscate, restore
from keyhole.obfuscation.raster import read_raster

PICTURES = 9


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "site.key"
    path.write_text(bytes(range(32)).hex())
    return path


def made(photos: Path, key: Path, epochs: int = 2, **options: object) -> ObfuscationResult:
    options = {"jobs": 1, **options}
    return obfuscate(photos, photos.parent / "out", epochs=epochs, key_file=key, **options)


def undone(photos: Path, key: Path, **options: object) -> ObfuscationResult:
    options = {"jobs": 1, **options}
    out = photos.parent
    return restore(out / "out", out / "back", key_file=key, **options)


def tree(root: Path) -> dict[str, str]:
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


@pytest.mark.parametrize("channels", ["apart", "mixed", "together"])
def test_every_kind_of_picture_is_hidden_and_comes_back(
    photos: Path, key: Path, channels: str
) -> None:
    before = tree(photos)
    work = made(photos, key, defense=Csvar(channels=channels))
    assert (work.images, work.done, work.already_done, work.skipped) == (PICTURES, PICTURES, 0, ())
    out = photos.parent / "out"
    names = sorted(version_name(name) for name in before)
    expected = {f"epoch-00{e}/{name}" for e in (1, 2) for name in names} | {MANIFEST}
    assert set(tree(out)) == expected
    assert undone(photos, key).done == PICTURES
    assert_restored(photos)
    assert tree(photos) == before


def test_versions_differ_from_the_original_and_from_each_other(photos: Path, key: Path) -> None:
    made(photos, key)
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
    made(photos, key, epochs=1)
    out = photos.parent / "out" / "epoch-001"
    assert tree(out)["cat/rgb.png"] != tree(out)["dog/twin.png"]
    record = read_manifest(photos.parent / "out").images
    assert record["cat/rgb.png"].check != record["dog/twin.png"].check


def test_the_key_decides_and_only_the_key(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key)
    obfuscate(photos, tmp_path / "again", epochs=2, key_file=key, jobs=2)
    assert tree(tmp_path / "again") == tree(tmp_path / "out")
    (tmp_path / "other.key").write_text(bytes(range(1, 33)).hex())
    obfuscate(photos, tmp_path / "other", epochs=2, key_file=tmp_path / "other.key", jobs=1)
    ours, theirs = tree(tmp_path / "out"), tree(tmp_path / "other")
    alike = [name for name in ours if ours[name] == theirs[name]]
    assert sorted(alike) == ["epoch-001/one.png", "epoch-002/one.png"]  # a single pixel


def test_the_record_tells_nothing_of_the_key_the_pixels_or_the_files(
    photos: Path, key: Path
) -> None:
    made(photos, key)
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
    assert made(photos, key).key_created
    assert not made(photos, key).key_created
    undone(photos, key)
    assert_restored(photos)


def test_the_same_again_does_nothing(photos: Path, key: Path) -> None:
    made(photos, key)
    out = photos.parent / "out"
    times = {file: file.stat().st_mtime_ns for file in out.rglob("*")}
    work = made(photos, key)
    assert (work.done, work.already_done) == (0, PICTURES)
    assert {file: file.stat().st_mtime_ns for file in out.rglob("*")} == times
    assert made(photos, key, epochs=1).done == 0


def test_what_is_missing_is_made_again_and_nothing_else(photos: Path, key: Path) -> None:
    made(photos, key)
    out = photos.parent / "out"
    before = tree(out)
    (out / "epoch-002" / "cat" / "rgb.png").unlink()
    cut = out / "epoch-001" / "one.png"
    cut.write_bytes(cut.read_bytes()[:-5])
    (out / "epoch-001" / ".4711.half").write_bytes(b"left by a kill")
    kept = out / "epoch-001" / "cat" / "rgb.png"
    stamp = kept.stat().st_mtime_ns
    assert made(photos, key).done == 2
    assert tree(out) == before
    assert kept.stat().st_mtime_ns == stamp


def test_more_epochs_are_added(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key, epochs=1)
    before = tree(tmp_path / "out")
    assert made(photos, key, epochs=3).done == PICTURES
    obfuscate(photos, tmp_path / "at once", epochs=3, key_file=key, jobs=1)
    after = tree(tmp_path / "out")
    assert after == tree(tmp_path / "at once")
    assert {name: h for name, h in after.items() if name in before and name != MANIFEST} == {
        name: h for name, h in before.items() if name != MANIFEST
    }
    made(photos, key, epochs=2)
    assert read_manifest(tmp_path / "out").epochs == 3


def test_new_and_changed_pictures_are_noticed(photos: Path, key: Path) -> None:
    made(photos, key)
    out = photos.parent / "out"
    before = tree(out)
    shutil.copy(photos / "cat" / "rgb.png", photos / "new.png")
    Image.fromarray(np.full((9, 9, 3), 77, np.uint8)).save(photos / "one.png")
    assert made(photos, key, epochs=1).done == 2
    changed = {name for name, h in tree(out).items() if before.get(name) != h}
    ones = {"epoch-001/one.png", "epoch-002/one.png"}
    assert changed == {"epoch-001/new.png", *ones, MANIFEST}
    undone(photos, key)
    assert_restored(photos)


def test_a_touched_file_is_looked_at_but_its_versions_stay(photos: Path, key: Path) -> None:
    made(photos, key)
    out = photos.parent / "out"
    version = out / "epoch-001" / "one.png"
    before, stamp = tree(out / "epoch-001"), version.stat().st_mtime_ns
    os.utime(photos / "one.png", (1, 1))
    assert made(photos, key).done == 1
    assert (tree(out / "epoch-001"), version.stat().st_mtime_ns) == (before, stamp)
    assert made(photos, key).done == 0


def test_pictures_whose_source_is_gone_stay_on_record(photos: Path, key: Path) -> None:
    made(photos, key)
    kept = photos.parent / "kept"
    shutil.copytree(photos, kept)
    for folder in ("cat", "dog"):
        shutil.rmtree(photos / folder)
    assert made(photos, key, epochs=3).images == 1
    assert len(read_manifest(photos.parent / "out").images) == PICTURES
    undone(photos, key)
    assert_restored(kept)


def test_unusable_pictures_are_left_out_and_tried_again(photos: Path, key: Path) -> None:
    (photos / "cat" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (photos / "dead.png").symlink_to("nowhere")
    Image.new("CMYK", (8, 8)).save(photos / "cat" / "print.jpg")
    (photos / ("a" * 250 + ".jpg")).write_bytes(b"")
    work = made(photos, key)
    assert [one.file[:20] for one in work.skipped] == [
        "a" * 20,
        "cat/broken.png",
        "cat/print.jpg",
        "dead.png",
    ]
    assert all(one.why and "\n" not in one.why for one in work.skipped)
    assert (work.done, work.already_done) == (PICTURES, 0)
    Image.new("L", (8, 8)).save(photos / "cat" / "broken.png")
    assert (made(photos, key).done, len(made(photos, key).skipped)) == (1, 3)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_left_out(photos: Path, key: Path) -> None:
    (photos / "one.png").chmod(0)
    assert [one.file for one in made(photos, key).skipped] == ["one.png"]


def test_names_that_are_no_text_are_kept(photos: Path, key: Path) -> None:
    name = os.fsdecode(b"dog/\xff\xfe odd.png")
    shutil.copy(photos / "one.png", photos / name)
    assert made(photos, key).done == PICTURES + 1
    assert made(photos, key).done == 0
    undone(photos, key)
    assert_restored(photos)


def test_another_keys_or_another_defenses_work_is_not_touched(
    photos: Path, key: Path, tmp_path: Path
) -> None:
    made(photos, key)
    before = tree(tmp_path)
    with pytest.raises(DataMissing, match=r"missing\.key does not exist: name the one that"):
        made(photos, tmp_path / "missing.key")
    (tmp_path / "other.key").write_text(bytes(range(1, 33)).hex())
    for job in (made, undone):
        with pytest.raises(RunFolderError, match=r"another key than .*other\.key"):
            job(photos, tmp_path / "other.key")
    with pytest.raises(RunFolderError, match=r"was made by csvar.*'apart'.*, not .*'mixed'"):
        made(photos, key, defense=Csvar(channels="mixed"))
    (tmp_path / "other.key").unlink()
    assert tree(tmp_path) == before


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
        made(photos, tmp_path / "new.key", **arguments)
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
    before = tree(tmp_path)
    with pytest.raises(KeyholeError, match=words) as raised:
        made(photos, tmp_path / "new.key")
    assert "\n" not in str(raised.value)
    assert tree(tmp_path) == before


def test_a_file_in_the_way_is_never_written_over(photos: Path, key: Path) -> None:
    out = photos.parent / "out"
    made(photos, key)
    first, *lines = (out / MANIFEST).read_text().splitlines()
    kept = [line for line in lines if "cat/rgb.png" not in line]
    (out / MANIFEST).write_text("\n".join([first, *kept]) + "\n")
    assert made(photos, key).done == 1  # what lies there shows the same
    (out / MANIFEST).write_text("\n".join([first, *kept]) + "\n")
    shutil.copy(photos / "cat" / "rgb.png", out / "epoch-001" / "cat" / "rgb.png")
    before = tree(out / "epoch-001")
    with pytest.raises(RunFolderError, match=r"cat/rgb\.png is in the way"):
        made(photos, key)
    assert tree(out / "epoch-001") == before


def test_shuffled_folders_are_not_shuffled_again(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key)
    with pytest.raises(BadValue, match="pass --restore"):
        obfuscate(tmp_path / "out", tmp_path / "twice", epochs=1, key_file=key)
    with pytest.raises(DataMissing, match="holds no shuffled versions"):
        restore(photos, tmp_path / "back", key_file=key)


def test_a_restoration_goes_on_where_it_stopped(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key)
    undone(photos, key)
    (tmp_path / "back" / "one.png").unlink()
    (tmp_path / "back" / ".4711.half").write_bytes(b"left by a kill")
    before = (tmp_path / "back" / "cat" / "rgb.png").stat().st_mtime_ns
    work = undone(photos, key)
    assert (work.done, work.already_done) == (1, PICTURES - 1)
    assert (tmp_path / "back" / "cat" / "rgb.png").stat().st_mtime_ns == before
    assert not list((tmp_path / "back").rglob("*.half"))
    assert_restored(photos)


def test_a_restoration_writes_nothing_over(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key)
    (tmp_path / "back" / "cat").mkdir(parents=True)
    shutil.copy(photos / "one.png", tmp_path / "back" / "cat" / "rgb.png")
    work = undone(photos, key)
    assert [one.file for one in work.skipped] == ["cat/rgb.png"]
    assert "is not overwritten" in work.skipped[0].why
    assert tree(tmp_path / "back")["cat/rgb.png"] == tree(photos)["one.png"]
    (tmp_path / "back" / "mine.txt").write_text("mine")
    with pytest.raises(RunFolderError, match="holds other files"):
        undone(photos, key)


def test_any_version_that_is_left_serves(photos: Path, key: Path, tmp_path: Path) -> None:
    made(photos, key, epochs=3)
    out = tmp_path / "out"
    shutil.rmtree(out / "epoch-001" / "cat")
    (out / "epoch-002" / "cat" / "rgb.png").write_bytes(b"spoilt")
    shutil.copy(out / "epoch-001" / "one.png", out / "epoch-002" / "cat" / "photo.jpg.png")
    assert undone(photos, key).skipped == ()
    assert_restored(photos)


def test_a_picture_that_was_tampered_with_is_not_restored(
    photos: Path, key: Path, tmp_path: Path
) -> None:
    made(photos, key)
    for epoch in ("epoch-001", "epoch-002"):
        file = tmp_path / "out" / epoch / "cat" / "rgb.png"
        pixels = np.asarray(Image.open(file)).copy()
        pixels[0, 0, 0] ^= 1
        Image.fromarray(pixels).save(file)
    work = undone(photos, key)
    assert [one.file for one in work.skipped] == ["cat/rgb.png"]
    assert not (tmp_path / "back" / "cat" / "rgb.png").exists()


def rewrite(photos: Path, change: Callable[[list[str]], object]) -> None:
    """Changes the lines of the record; the first of them is on the whole."""
    path = photos.parent / "out" / MANIFEST
    lines = path.read_text().splitlines()
    change(lines)
    path.write_text("".join(f"{line}\n" for line in lines))


def with_value(place: int, field: str, value: object) -> Callable[[list[str]], None]:
    def change(lines: list[str]) -> None:
        lines[place] = json.dumps({**json.loads(lines[place]), field: value})

    return change


def with_line(place: int, text: str) -> Callable[[list[str]], None]:
    return lambda lines: lines.__setitem__(place, text)


@pytest.mark.parametrize(
    ("change", "words", "lost"),
    [
        (lambda lines: lines.pop(3), "1 line missing", 1),
        (lambda lines: lines.pop(), "1 line missing", 1),
        (lambda lines: lines.__delitem__(slice(2, 5)), "3 lines missing", 3),
        (lambda lines: lines.append(lines[2]), "1 line repeated, 1 line moved", 0),
        (lambda lines: lines.insert(2, lines[1]), "1 line repeated", 0),
        (lambda lines: lines.append(lines.pop(1)), "1 line moved", 0),
        (lambda lines: lines.__setitem__(2, lines[1]), "1 line missing, 1 line repeated", 1),
        (with_value(1, "hint", "zz"), "1 line changed", 1),
        (with_value(1, "hint", None), "1 line changed", 1),
        (with_value(1, "check", "00"), "1 line changed", 1),
        (with_value(1, "stamp", "00"), "1 line changed", 1),
        (with_value(1, "number", 7), "1 line changed", 1),
        (with_value(1, "mark", "00"), "1 line changed", 1),
        (with_value(1, "lengths", [1]), "1 line changed", 1),
        (with_value(1, "size", [64, 64]), "1 line changed", 1),
        (with_value(1, "size", [0, 4]), "1 line changed", 1),
        (with_value(1, "source", "cat/elsewhere.png"), "1 line changed", 1),
        (with_value(1, "source", "../../escaped.png"), "1 line changed", 1),
        (with_value(1, "source", "/etc/passwd.png"), "1 line changed", 1),
        (with_line(1, "["), "1 line changed", 1),
        (with_line(1, "[" * 5000), "1 line changed", 1),
        (with_line(1, "{}"), "1 line changed", 1),
        (with_value(0, "complete", False), "its first line changed", 0),
        (with_value(0, "pictures", 3), "its first line changed", 0),
        (with_value(0, "surplus", 3), "its first line changed", 0),
    ],
)
def test_a_change_of_the_record_is_told_and_costs_no_other_picture(
    photos: Path, key: Path, change: Callable[[list[str]], object], words: str, lost: int
) -> None:
    made(photos, key)
    rewrite(photos, change)
    work = undone(photos, key)
    assert work.changes == words
    assert (work.images, work.done, len(work.skipped)) == (PICTURES, PICTURES - lost, lost)
    assert not work.succeeded
    again = made(photos, key)  # makes what is missing from the record
    assert again.done == lost
    assert (made(photos, key).changes, undone(photos, key).skipped) == ("", ())
    assert_restored(photos)


def test_an_older_record_in_the_place_of_a_newer_one_is_noticed(photos: Path, key: Path) -> None:
    """All its marks are true; what tells is that images have versions which it does not name."""
    new = min(photos.rglob("*.png"))
    shutil.move(new, photos.parent / "new.png")
    made(photos, key)
    path = photos.parent / "out" / MANIFEST
    old = path.read_text()
    shutil.move(photos.parent / "new.png", new)
    made(photos, key)
    path.write_text(old)
    work = undone(photos, key)
    assert work.changes == "it lacks 1 image(s) that have versions"
    assert not work.succeeded


def test_a_key_file_that_links_to_itself_is_refused_in_words(photos: Path) -> None:
    loop = photos.parent / "loop"
    loop.symlink_to(loop)
    with pytest.raises(KeyholeError, match="cannot be read"):
        made(photos, loop)


def test_lines_of_an_older_record_are_noticed(photos: Path, key: Path) -> None:
    made(photos, key)
    path = photos.parent / "out" / MANIFEST
    old = path.read_text().splitlines()
    Image.fromarray(np.full((9, 9, 3), 77, np.uint8)).save(photos / "one.png")
    made(photos, key)
    rewrite(photos, lambda lines: lines.__setitem__(-1, old[-1]))
    assert undone(photos, key).changes == "lines of an older manifest inserted"


def test_marks_cannot_be_left_out_in_silence(photos: Path, key: Path) -> None:
    """A record without marks is believed only of folders that were made without them."""
    made(photos, key)

    def strip(lines: list[str]) -> None:
        names = {"mark", "mark_of_all", "number", "pictures"}
        for place, line in enumerate(lines):
            lines[place] = json.dumps({k: v for k, v in json.loads(line).items() if k not in names})
        del lines[2]

    rewrite(photos, strip)
    work = undone(photos, key)
    assert work.done == 0
    assert work.changes.startswith(f"{PICTURES - 1} lines changed")


def old_record(photos: Path, key: Path) -> None:
    """As it was written before lines had marks."""
    held = SiteKey(bytes.fromhex(key.read_text()))

    def change(lines: list[str]) -> None:
        names = {"mark", "mark_of_all", "number", "pictures", "stretch"}
        for place, line in enumerate(lines):
            lines[place] = json.dumps({k: v for k, v in json.loads(line).items() if k not in names})
        with_value(0, "key_check", held.sign("which key"))(lines)

    rewrite(photos, change)


def test_an_older_folder_is_restored_and_its_record_marked(photos: Path, key: Path) -> None:
    made(photos, key)
    now = tree(photos.parent / "out")
    old_record(photos, key)
    rewrite(photos, with_value(1, "hint", "zz"))
    work = undone(photos, key)
    assert (work.signed, work.changes, work.done) == (False, "", PICTURES - 1)
    assert [one.why for one in work.skipped] == ["none of its versions gives the original back"]
    made(photos, key)
    old_record(photos, key)
    assert made(photos, key).done == 0
    assert tree(photos.parent / "out") == now
    assert undone(photos, key).signed


def test_words_as_a_key_are_stretched_and_restore(photos: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.key"
    words.write_text("correct horse battery staple")
    made(photos, words, epochs=1)
    head = json.loads((tmp_path / "out" / MANIFEST).read_text().splitlines()[0])
    assert head["stretch"]["n"] >= 1 << 16
    assert made(photos, words, epochs=1).done == 0
    assert undone(photos, words).succeeded
    assert_restored(photos)
    rewrite(photos, with_value(0, "stretch", {**head["stretch"], "n": 1 << 40}))
    with pytest.raises(BadValue, match="stretch"):
        undone(photos, words)


def test_a_line_cut_by_a_kill_costs_one_picture(photos: Path, key: Path) -> None:
    made(photos, key)
    path = photos.parent / "out" / MANIFEST
    before = tree(photos.parent / "out")
    manifest, held = read_manifest(path.parent), SiteKey(bytes.fromhex(key.read_text()))
    pictures = list(manifest.images.values())
    write_manifest(path.parent, Manifest(replace(manifest.header, complete=False), {}), held.sign)
    for number, picture in enumerate(pictures, 1):
        append_to_manifest(path.parent, [picture], held.sign, number=number)
    path.write_text(path.read_text()[:-20])
    work = undone(photos, key)
    assert (work.complete, work.changes, work.done) == (False, "", PICTURES - 1)
    assert not work.succeeded
    assert made(photos, key).done == 1
    assert tree(photos.parent / "out") == before
