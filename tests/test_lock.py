from __future__ import annotations

import errno
import logging
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

from keyhole import lock
from keyhole.errors import RunFolderError
from keyhole.lock import LOCK, FolderLock, locked


def test_a_second_process_is_told_who_is_at_work_and_a_dead_one_holds_nothing(
    tmp_path: Path,
) -> None:
    reads, writes = os.pipe()
    other = os.fork()
    if other == 0:
        FolderLock(tmp_path)
        os.write(writes, b"held")
        signal.pause()
    try:
        assert os.read(reads, 4) == b"held"
        said = rf"another keyhole is at work in {tmp_path} \(pid {other}\): wait, or choose"
        with pytest.raises(RunFolderError, match=said):
            FolderLock(tmp_path)
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)
        os.close(reads)
        os.close(writes)
    assert (tmp_path / LOCK).is_file(), "a killed process cannot remove it"
    FolderLock(tmp_path).release()
    assert not list(tmp_path.iterdir())


def test_a_folder_is_free_again_after_the_work_and_after_its_failure(tmp_path: Path) -> None:
    def fail() -> None:
        with locked(tmp_path / "run", tmp_path / "seen"):
            with pytest.raises(RunFolderError, match=f"pid {os.getpid()}"):
                FolderLock(tmp_path / "seen")
            (tmp_path / "run" / "kept").touch()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "kept"]
    FolderLock(tmp_path / "run").release()


def test_one_folder_by_two_names_is_locked_once(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run", tmp_path / "run" / ".." / "run"):
        assert (tmp_path / "run" / LOCK).is_file()


def test_a_lock_that_its_holder_removed_meanwhile_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who opened the file before the holder removed it must not lock what nobody sees."""
    real, calls = lock.take_lock, []

    def take(file: int, root: Path) -> None:
        calls.append(file)
        if len(calls) == 1:
            (tmp_path / LOCK).unlink()
        real(file, root)

    monkeypatch.setattr(lock, "take_lock", take)
    held = FolderLock(tmp_path)
    assert len(calls) == 2
    with pytest.raises(RunFolderError):
        FolderLock(tmp_path)
    held.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_where_there_are_no_locks_the_work_goes_on_with_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    def flock(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lock, "fcntl", SimpleNamespace(flock=flock, LOCK_EX=2, LOCK_NB=4))
    with caplog.at_level(logging.WARNING), locked(tmp_path):
        pass
    assert "cannot be locked" in caplog.text


def test_a_read_only_folder_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(RunFolderError, match=r"Read-only file system\): choose another --out"):
        FolderLock(tmp_path)


def test_a_folder_whose_name_is_no_text_is_refused_before_any_work(tmp_path: Path) -> None:
    root = tmp_path / os.fsdecode(b"run-\xff")
    with pytest.raises(RunFolderError, match="not UTF-8: choose another --out"), locked(root):
        pass
    assert not root.exists()
