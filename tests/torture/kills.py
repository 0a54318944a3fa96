"""Runs of the command line that are killed: at any event on disk, or at any moment.

Each run is a fork of this process, which has imported everything, so that it begins at once. A kill
is SIGKILL, sent by the run to itself just before its n-th event below its folder, or by us.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

HANGS_AFTER = 120.0
"""Seconds after which a run counts as one that hangs."""
WRITES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate"}
"""What Python tells an audit hook before it happens; rename is also replace, remove also unlink."""


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    """Its exit code, or minus the signal that ended it."""
    text: str
    """All that it printed."""
    seconds: float
    events: int
    """On disk, below its folder."""

    @property
    def clean(self) -> bool:
        """It ended well, or by a word to the user."""
        return self.code in (0, 2) and "Traceback" not in self.text


def run_command(
    folder: Path,
    work: Callable[[], object],
    *,
    at: int | None = None,
    after: float | None = None,
    by: signal.Signals = signal.SIGKILL,
) -> Ended:
    """Runs ``work`` in ``folder``; ends it before event ``at``, or ``after`` some seconds."""
    log = folder.parent / f"{folder.name}.log"
    folder.mkdir(parents=True, exist_ok=True)
    reads, writes = os.pipe()
    began = time.monotonic()
    process = os.fork()
    if process == 0:
        os.close(reads)
        in_the_fork(folder, work, log, writes, at)
    os.close(writes)
    code = wait_for(process, began, after, by)
    with os.fdopen(reads) as told:
        events = int(told.read() or 0)
    text = log.read_text(errors="replace")
    return Ended(code, text, time.monotonic() - began, events)


def in_the_fork(
    folder: Path, work: Callable[[], object], log: Path, writes: int, at: int | None
) -> None:
    """Never returns: the fork must not go on as the test that it is a copy of."""
    code = 1
    try:
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(out, 1)
        os.dup2(out, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        torch.set_num_threads(1)  # a fork has no other threads
        os.chdir(folder)
        events = count_events(folder.resolve(), at)
        try:
            work()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        except KeyboardInterrupt:  # before the command began, or when it was over
            code = 130
        os.write(writes, str(events[0]).encode())
    except BaseException:  # noqa: BLE001  whatever it is, it is told and the fork ends
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def count_events(folder: Path, at: int | None) -> list[int]:
    """Counts what happens on disk below ``folder``; this process dies before event ``at``."""
    count, below = [0], f"{folder}{os.sep}"

    def hear(event: str, given: tuple[object, ...]) -> None:
        if event not in WRITES or not isinstance(given[0], (str, bytes, os.PathLike)):
            return
        if os.path.abspath(os.fsdecode(given[0])).startswith(below):
            if count[0] == at:
                os.kill(os.getpid(), signal.SIGKILL)
            count[0] += 1

    sys.addaudithook(hear)
    return count


def wait_for(process: int, began: float, after: float | None, by: signal.Signals) -> int:
    """The exit code; sends the signal in time. A process that hangs is killed, with code 124."""
    sent = after is None
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        spent = time.monotonic() - began
        if spent > HANGS_AFTER:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return 124
        if not sent and after is not None and spent >= after:
            os.kill(process, by)
            sent = True
        time.sleep(0.002)


def copy_tree(source: Path, folder: Path) -> None:
    """A folder as it was before the run."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
