from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.errors import BadValue, DataMissing, RunFolderError
from keyhole.obfuscation.folders import (
    check_paths,
    check_result_names,
    find_images,
    printable_path,
    result_name_fits,
    write_atomically,
)


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


def test_pictures_are_found_by_name_at_any_depth(tmp_path: Path) -> None:
    touch(tmp_path, "b.PNG", "cat/a.jpg", "cat/deep/er/c.tiff", "notes.txt", ".hidden.png", "x")
    os.mkfifo(tmp_path / "pipe.png")
    found = find_images(tmp_path, tmp_path / "out")
    assert found.images == ("b.PNG", "cat/a.jpg", "cat/deep/er/c.tiff")
    assert found.other_files == 4


def test_links_are_followed_and_dead_ones_told_of_later(tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/a.png", "src/b.png")
    (tmp_path / "src" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "src" / "dead.png").symlink_to("nowhere.png")
    found = find_images(tmp_path / "src", tmp_path / "out")
    assert found.images == ("b.png", "cat/a.png", "dead.png")


@pytest.mark.parametrize(
    ("link", "target", "words"),
    [
        ("src/cat/loop", "src", "is a link to a folder above it"),
        ("src/loop", "src/loop", "Too many levels of symbolic links"),
        ("src/results", "out", "is a link to .*out: remove it"),
    ],
)
def test_links_that_lead_astray_are_refused(
    tmp_path: Path, link: str, target: str, words: str
) -> None:
    touch(tmp_path, "src/cat/a.png", "out/b.png")
    (tmp_path / link).symlink_to(tmp_path / target)
    with pytest.raises(DataMissing, match=words):
        find_images(tmp_path / "src", tmp_path / "out")


@pytest.mark.parametrize(
    ("source", "out", "key", "words"),
    [
        ("src", "src", "key", "must be separate folders"),
        ("src", "src/out", "key", "must be separate folders"),
        ("src/cat", "src", "key", "must be separate folders"),
        ("src", "src/../src/out", "key", "must be separate folders"),
        ("src", "alias/out", "key", "must be separate folders"),
        ("src", "out", "src/key", "it would travel with them"),
        ("src", "out", "out/deep/key", "it would travel with them"),
        ("src", "out", "alias/key", "it would travel with them"),
        ("nowhere", "out", "key", "is not a folder of images"),
        ("src/cat/a.png", "out", "key", "is not a folder of images"),
        ("src", "file", "key", "is not a folder"),
    ],
)
def test_source_result_and_key_lie_apart(
    tmp_path: Path, source: str, out: str, key: str, words: str
) -> None:
    touch(tmp_path, "src/cat/a.png", "file")
    (tmp_path / "alias").symlink_to(tmp_path / "src")
    with pytest.raises((BadValue, DataMissing, RunFolderError), match=words):
        check_paths(tmp_path / source, tmp_path / out, tmp_path / key)


def test_folders_apart_are_fine(tmp_path: Path) -> None:
    touch(tmp_path, "src/a.png")
    check_paths(tmp_path / "src", tmp_path / "src-shuffled", tmp_path / "key")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a.jpg", "a.jpg.png"], r"a\.jpg and a\.jpg\.png would both become a\.jpg\.png"),
        (["c/a.gif.png", "c/a.gif"], "would both become"),
        (["a.jpg", "a.jpg.png/b.png"], "the name of a folder"),
    ],
)
def test_results_of_one_name_are_refused(names: list[str], words: str) -> None:
    with pytest.raises(BadValue, match=words):
        check_result_names(names)


def test_like_names_in_several_folders_are_fine() -> None:
    check_result_names(["a.jpg", "a.png", "a.jpeg", "c/a.jpg", "a.PNG", "a/b.png"])


def test_names_leave_room_for_the_suffix() -> None:
    assert result_name_fits("deep/" * 100 + "a" * 247 + ".jpg")
    assert not result_name_fits("a" * 248 + ".jpg")
    assert result_name_fits("a" * 251 + ".png")
    assert not result_name_fits("ä" * 126 + ".jpg")


def test_a_file_is_written_as_a_whole_even_under_the_longest_name(tmp_path: Path) -> None:
    file = tmp_path / "new" / ("a" * 251 + ".png")
    write_atomically(file, b"content")
    assert file.read_bytes() == b"content"
    assert os.listdir(file.parent) == [file.name]


def test_where_nothing_can_be_written_it_is_told(tmp_path: Path) -> None:
    touch(tmp_path, "file")
    with pytest.raises(RunFolderError, match=r"cannot write .* the same command continues"):
        write_atomically(tmp_path / "file" / "a.png", b"content")


def test_any_name_is_shown_on_one_line() -> None:
    assert printable_path(Path("schön/ein bild.png")) == "schön/ein bild.png"
    assert printable_path(Path("a\nb.png")) == r"'a\nb.png'"
    assert printable_path(Path(os.fsdecode(b"\xff.png"))) == r"'\udcff.png'"
