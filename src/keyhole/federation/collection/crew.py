"""Work on many files at once: one process a core."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch

from keyhole.errors import BadValue, RunFolderError

Task = TypeVar("Task")
Result = TypeVar("Result")

AHEAD = 4
"""Tasks a process that are handed out before their turn."""
REFRESH = 0.5
"""Seconds between two looks at how fast it goes."""


class Progress(Protocol):
    """Told how much there is to do and how much is done."""

    def begin(self, total: int) -> None: ...

    def show(self, what: str) -> None: ...

    def advance(self, units: int) -> None: ...


class Silent:
    """Watches nothing."""

    def begin(self, total: int) -> None:
        pass

    def show(self, what: str) -> None:
        pass

    def advance(self, units: int) -> None:
        pass


def crew_size(jobs: int | None) -> int:
    """How many processes are wanted; without a wish, one a core."""
    if jobs is not None and jobs < 1:
        raise BadValue(f"jobs: it takes one process at least, got {jobs}")
    return jobs or cores()


def watched(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    doing: str,
    jobs: int,
    progress: Progress | None,
) -> Iterator[Result]:
    """``work`` on every task, before the eyes of ``progress``."""
    progress = progress or Silent()
    progress.begin(len(tasks))
    progress.show(doing)
    began = looked = time.perf_counter()
    some = max(1, min(jobs, len(tasks)))
    for number, result in enumerate(each(work, tasks, jobs=some), start=1):
        progress.advance(1)
        now = time.perf_counter()
        if now - looked > REFRESH:
            looked = now
            progress.show(f"{doing}, {number / (now - began):.0f} images/s")
        yield result


def cores() -> int:
    """Processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def each(work: Callable[[Task], Result], tasks: Iterable[Task], *, jobs: int) -> Iterator[Result]:
    """``work`` on every task, as results come; with one job in this process itself."""
    if jobs == 1:
        with one_thread():
            yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=context(), initializer=settle_in)
    waiting: set[Future[Result]] = set()
    try:
        for task in tasks:
            if len(waiting) >= jobs * AHEAD:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            waiting.add(pool.submit(work, task))
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except BrokenProcessPool:
        raise RunFolderError(
            "a process was killed, perhaps for its memory: run the same command again to go on, "
            "with fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def context() -> multiprocessing.context.BaseContext:
    """Children that have all modules at once, as torch's data loaders have, where it is safe."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def settle_in() -> None:
    """A worker uses one thread, leaves Ctrl-C to its parent, and does not outlive it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=leave_with_the_parent, daemon=True).start()


def leave_with_the_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
