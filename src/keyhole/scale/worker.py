"""What happens to a piece where it runs."""

from __future__ import annotations

import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from keyhole.progress import Progress
from keyhole.scale.piece import Machine, Piece, Workspace
from keyhole.scale.piece_store import PieceStore

Report = Callable[[float, str], None]
"""Is told how much of a piece is done, in [0, 1], and what is being done."""

SECONDS_BETWEEN_REPORTS = 0.5


def do_piece(piece: Piece, store: PieceStore, machine: Machine, report: Report) -> None:
    """Runs a piece, or continues it where another run of it stopped, and writes its result."""
    with store.work_folder(piece) as folder:
        if store.is_finished(piece):  # by another process, while this one waited for the folder
            return
        began = time.perf_counter()
        with limited_threads(machine.cpus):
            space = Workspace(folder, PieceProgress(report), machine)
            result = piece.load_work()(piece.values, space)
        cost = {
            "seconds": time.perf_counter() - began,
            "peak_mb": read_peak_memory(),
            "host": platform.node(),
        }
        store.write(piece, result, cost)


def read_peak_memory() -> float:
    """The most memory that this process has held so far, in megabytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Lets torch use so many threads inside the block, as the last bits may depend on it."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class PieceProgress(Progress):
    """Turns the progress of one piece into reports, at most two a second.

    Args:
        report: Is told of them.
    """

    def __init__(self, report: Report) -> None:
        self.report = report
        self.total, self.done, self.part = 1, 0, 0.0
        self.text = ""
        self.told_at = float("-inf")

    def begin(self, total: int) -> None:
        self.total, self.done, self.part = max(1, total), 0, 0.0

    def show(self, what: str) -> None:
        self.text, self.part = what, 0.0
        self.tell()

    def advance(self, units: int) -> None:
        self.done, self.part = self.done + units, 0.0
        self.tell()

    def iterate(self, done: int, total: int, text: str) -> None:
        self.part = done / max(1, total)
        self.tell()

    def complete(self, share: float, text: str) -> None:
        self.part = share
        self.tell()

    def tell(self) -> None:
        """Reports where the piece stands, unless that was done a moment ago."""
        now = time.monotonic()
        if now - self.told_at >= SECONDS_BETWEEN_REPORTS:
            self.told_at = now
            self.report(min(1.0, (self.done + self.part) / self.total), self.text)
