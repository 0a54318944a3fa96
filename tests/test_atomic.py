from __future__ import annotations

import os
from pathlib import Path

import pytest

from keyhole.atomic import append_line, check_writable, remove_unfinished, write_json, write_text
from keyhole.errors import RunFolderError


def test_what_is_written_is_on_the_disk_before_its_name_is_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, os.replace

    def flushed(file: int) -> None:
        events.append(f"fsync {Path(os.readlink(f'/proc/self/fd/{file}')).name.split('.')[0]}")
        fsync(file)

    def renamed(one: Path, other: Path, **named: object) -> None:
        events.append("rename")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(os, "replace", renamed)
    write_json(tmp_path / "run" / "value.json", {"a": 1})
    assert events == ["fsync ", "rename", "fsync run"]
    append_line(tmp_path / "run" / "value.json", "more")
    assert events[3:] == ["fsync value"]


def test_a_write_that_is_interrupted_leaves_what_was_there_and_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_text(tmp_path / "kept", "old")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["kept"]


def test_only_halves_are_swept_and_below_only_when_asked(tmp_path: Path) -> None:
    (tmp_path / "seen").mkdir()
    for name in (".a.json.12.half", "seen/.b.7.half", ".tmpAb12Cd", "a.half", ".tmp", ".mine"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path, below=False)
    assert (tmp_path / "seen" / ".b.7.half").exists()
    remove_unfinished(tmp_path)
    assert sorted(p.name for p in tmp_path.rglob("*")) == [".mine", ".tmp", "a.half", "seen"]


def test_a_record_that_cannot_grow_is_told_in_words(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot write"):
        append_line(tmp_path, "a folder, not a file")


@pytest.mark.parametrize("where", ["a file", "a file/below", "/proc/keyhole"])
def test_a_folder_that_cannot_be_written_to_is_known_before_the_work(
    tmp_path: Path, where: str
) -> None:
    (tmp_path / "a file").touch()
    with pytest.raises(RunFolderError, match="cannot write to"):
        check_writable(tmp_path / where)
    check_writable(tmp_path / "new" / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["a file"]


def test_names_that_are_no_text_are_written_as_escapes(tmp_path: Path) -> None:
    path = write_text(tmp_path / "page.html", "<p>\u00e4 bad\udcff</p>\r\n")
    assert path.read_bytes() == "<p>\u00e4 bad\\udcff</p>\r\n".encode()
