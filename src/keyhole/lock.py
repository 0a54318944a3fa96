"""Lets one process at a time work in a run folder."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from keyhole.errors import RunFolderError, one_line

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("keyhole")

LOCK = ".keyhole.lock"
NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL}
"""Errors of file systems that have no locks."""


class FolderBusy(RunFolderError):
    """Another process is at work in the folder."""


class FolderLock:
    """A lock that a process holds while it works in a folder; the kernel frees it if it dies."""

    def __init__(self, root: Path) -> None:
        """Takes the lock of ``root``, or raises where another process has it."""
        self.path = root / LOCK
        self.file: int | None = None
        try:
            self.file = self._open()
        except OSError as error:
            why = error.strerror or one_line(error)
            raise RunFolderError(f"cannot write to {root} ({why}): choose another --out") from None

    def release(self) -> None:
        """Frees the folder; a second call does nothing."""
        if self.file is None:
            return
        with suppress(OSError):  # the folder may be gone, or read-only by now
            self.path.unlink()
        os.close(self.file)
        self.file = None

    def _open(self) -> int:
        """Opens and locks the file; again where its last holder has just removed it."""
        while True:
            file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                take_lock(file, self.path.parent)
                if self.path.exists() and os.path.samestat(os.fstat(file), self.path.stat()):
                    os.truncate(file, 0)
                    os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                    return file
            except BaseException:
                os.close(file)
                raise
            os.close(file)


def take_lock(file: int, root: Path) -> None:
    """Locks an open file; where the file system has no locks, logs that and goes on."""
    try:
        if fcntl is None:
            raise OSError(errno.ENOSYS, "this system has none")
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        who = os.pread(file, 20, 0).decode("ascii", "replace").strip()
        pid = f" (pid {who})" if who.isdecimal() else ""
        raise FolderBusy(
            f"another keyhole is at work in {root}{pid}: wait, or choose another --out"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        log.warning(
            "note: %s cannot be locked (%s): start no second keyhole there", root, error.strerror
        )


@contextmanager
def locked(*roots: Path) -> Iterator[None]:
    """Locks folders, which are created; those that stay empty are removed again."""
    locks: list[FolderLock] = []
    created: list[Path] = []
    try:
        for root in {os.path.realpath(root): root for root in roots}.values():
            created += [] if root.exists() else [root]
            make_folder(root)
            locks.append(FolderLock(root))
        yield
    finally:
        for lock in locks:
            lock.release()
        for root in created:
            with suppress(OSError):  # it holds something, as it should
                root.rmdir()


def make_folder(root: Path) -> None:
    """Creates a folder; its name must be UTF-8, or safetensors could not read files in it."""
    try:
        str(root).encode("utf-8")
        root.mkdir(parents=True, exist_ok=True)
    except UnicodeEncodeError:
        raise RunFolderError(f"{root} has a name that is not UTF-8: choose another --out") from None
    except OSError as error:
        why = error.strerror or one_line(error)
        raise RunFolderError(f"cannot write to {root} ({why}): choose another --out") from None
