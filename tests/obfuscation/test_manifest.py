"""A manifest that was changed, cut off, or made by an older release."""

from __future__ import annotations

import json
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
    write_manifest,
)
from keyhole.errors import BadValue, KeyholeError
from keyhole.obfuscation import SiteKey
from obfuscated_folders import (
    PICTURES,
    assert_restored,
    hash_files,
    obfuscate_photos,
    restore_photos,
)


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
    obfuscate_photos(photos, key)
    rewrite(photos, change)
    work = restore_photos(photos, key)
    assert work.changes == words
    assert (work.images, work.done, len(work.skipped)) == (PICTURES, PICTURES - lost, lost)
    assert not work.succeeded
    again = obfuscate_photos(photos, key)  # makes what is missing from the record
    assert again.done == lost
    assert (obfuscate_photos(photos, key).changes, restore_photos(photos, key).skipped) == ("", ())
    assert_restored(photos)


def test_an_older_record_in_the_place_of_a_newer_one_is_noticed(photos: Path, key: Path) -> None:
    """All its marks are true; what tells is that images have versions which it does not name."""
    new = min(photos.rglob("*.png"))
    shutil.move(new, photos.parent / "new.png")
    obfuscate_photos(photos, key)
    path = photos.parent / "out" / MANIFEST
    old = path.read_text()
    shutil.move(photos.parent / "new.png", new)
    obfuscate_photos(photos, key)
    path.write_text(old)
    work = restore_photos(photos, key)
    assert work.changes == "it lacks 1 image(s) that have versions"
    assert not work.succeeded


def test_a_key_file_that_links_to_itself_is_refused_in_words(photos: Path) -> None:
    loop = photos.parent / "loop"
    loop.symlink_to(loop)
    with pytest.raises(KeyholeError, match="cannot be read"):
        obfuscate_photos(photos, loop)


def test_lines_of_an_older_record_are_noticed(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    path = photos.parent / "out" / MANIFEST
    old = path.read_text().splitlines()
    Image.fromarray(np.full((9, 9, 3), 77, np.uint8)).save(photos / "one.png")
    obfuscate_photos(photos, key)
    rewrite(photos, lambda lines: lines.__setitem__(-1, old[-1]))
    assert restore_photos(photos, key).changes == "lines of an older manifest inserted"


def test_marks_cannot_be_left_out_in_silence(photos: Path, key: Path) -> None:
    """A record without marks is believed only of folders that were made without them."""
    obfuscate_photos(photos, key)

    def strip(lines: list[str]) -> None:
        names = {"mark", "mark_of_all", "number", "pictures"}
        for place, line in enumerate(lines):
            lines[place] = json.dumps({k: v for k, v in json.loads(line).items() if k not in names})
        del lines[2]

    rewrite(photos, strip)
    work = restore_photos(photos, key)
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
    obfuscate_photos(photos, key)
    now = hash_files(photos.parent / "out")
    old_record(photos, key)
    rewrite(photos, with_value(1, "hint", "zz"))
    work = restore_photos(photos, key)
    assert (work.signed, work.changes, work.done) == (False, "", PICTURES - 1)
    assert [one.why for one in work.skipped] == ["none of its versions gives the original back"]
    obfuscate_photos(photos, key)
    old_record(photos, key)
    assert obfuscate_photos(photos, key).done == 0
    assert hash_files(photos.parent / "out") == now
    assert restore_photos(photos, key).signed


def test_a_line_cut_by_a_kill_costs_one_picture(photos: Path, key: Path) -> None:
    obfuscate_photos(photos, key)
    path = photos.parent / "out" / MANIFEST
    before = hash_files(photos.parent / "out")
    manifest, held = read_manifest(path.parent), SiteKey(bytes.fromhex(key.read_text()))
    pictures = list(manifest.images.values())
    write_manifest(path.parent, Manifest(replace(manifest.header, complete=False), {}), held.sign)
    for number, picture in enumerate(pictures, 1):
        append_to_manifest(path.parent, [picture], held.sign, number=number)
    path.write_text(path.read_text()[:-20])
    work = restore_photos(photos, key)
    assert (work.complete, work.changes, work.done) == (False, "", PICTURES - 1)
    assert not work.succeeded
    assert obfuscate_photos(photos, key).done == 1
    assert hash_files(photos.parent / "out") == before


def test_words_as_a_key_are_stretched_and_restore(photos: Path, tmp_path: Path) -> None:
    words = tmp_path / "words.key"
    words.write_text("correct horse battery staple")
    obfuscate_photos(photos, words, epochs=1)
    head = json.loads((tmp_path / "out" / MANIFEST).read_text().splitlines()[0])
    assert head["stretch"]["n"] >= 1 << 16
    assert obfuscate_photos(photos, words, epochs=1).done == 0
    assert restore_photos(photos, words).succeeded
    assert_restored(photos)
    rewrite(photos, with_value(0, "stretch", {**head["stretch"], "n": 1 << 40}))
    with pytest.raises(BadValue, match="stretch"):
        restore_photos(photos, words)
