"""Processes many files at once: one worker process per core."""

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
from typing import TypeVar

import torch

from keyhole.errors import BadValue, RunFolderError
from keyhole.progress import NullProgress, Progress

Task = TypeVar("Task")
Result = TypeVar("Result")

QUEUED_PER_WORKER = 4
"""Tasks per worker that are submitted before their turn."""
REFRESH_SECONDS = 0.5
"""Time between two updates of the speed that is shown."""


def count_workers(jobs: int | None) -> int:
    """Returns the number of worker processes: ``jobs``, or one per core."""
    if jobs is not None and jobs < 1:
        raise BadValue(f"jobs: at least one process is needed, got {jobs}")
    return jobs or count_cores()


def run_with_progress(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    doing: str,
    jobs: int,
    progress: Progress | None,
) -> Iterator[Result]:
    """Yields the result of ``work`` on every task, and reports progress and speed."""
    progress = progress or NullProgress()
    progress.begin(len(tasks))
    progress.show(doing)
    began = shown_at = time.perf_counter()
    workers = max(1, min(jobs, len(tasks)))
    for number, result in enumerate(run_tasks(work, tasks, jobs=workers), start=1):
        progress.advance(1)
        now = time.perf_counter()
        if now - shown_at > REFRESH_SECONDS:
            shown_at = now
            progress.show(f"{doing}, {number / (now - began):.0f} images/s")
        yield result


def count_cores() -> int:
    """Returns the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def run_tasks(
    work: Callable[[Task], Result], tasks: Iterable[Task], *, jobs: int
) -> Iterator[Result]:
    """Yields results as they come; one job runs in this process itself."""
    if jobs == 1:
        with use_one_thread():
            yield from map(work, tasks)
        return
    pool = ProcessPoolExecutor(jobs, mp_context=process_context(), initializer=start_worker)
    waiting: set[Future[Result]] = set()
    try:
        for task in tasks:
            if len(waiting) >= jobs * QUEUED_PER_WORKER:
                done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
            waiting.add(pool.submit(work, task))
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)
    except BrokenProcessPool:
        raise RunFolderError(
            "a process was killed, perhaps because memory ran out: run the same command again to "
            "continue, with fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def process_context() -> multiprocessing.context.BaseContext:
    """Forks where that is safe, as torch's data loaders do: children need not import anything."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def start_worker() -> None:
    """Makes a worker use one thread, leave Ctrl-C to its parent, and end with it."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Waits for the parent process to end, then ends this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


@contextmanager
def use_one_thread() -> Iterator[None]:
    """Lets torch use one thread inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
