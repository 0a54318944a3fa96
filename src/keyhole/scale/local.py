"""Runs pieces on this machine, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Sequence, Set
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import SimpleQueue

from keyhole.errors import BadValue, KeyholeError, RunFolderError
from keyhole.scale.board import Board
from keyhole.scale.outcome import Outcome
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import PieceStore, open_store
from keyhole.scale.worker import do_piece

Reports = SimpleQueue[tuple[str, str, float, str]]

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Local:
    """This machine.

    Args:
        workers: Processes that work at once; 1: this process does the work.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise BadValue(f"workers: at least one is needed, got {self.workers}")

    def run(
        self, pieces: Sequence[Piece], store: PieceStore, machine: Machine, board: Board
    ) -> Generator[Outcome, None, None]:
        """Runs pieces and yields what became of each, as they end.

        Args:
            pieces: Pieces that have no result yet.
            store: Where they keep their results.
            machine: What each may use.
            board: Shows where they stand.
        """
        if min(self.workers, len(pieces)) == 1:
            return run_here(pieces, store, machine, board)
        return run_in_processes(pieces, store, machine, board, min(self.workers, len(pieces)))


def run_here(
    pieces: Sequence[Piece], store: PieceStore, machine: Machine, board: Board
) -> Generator[Outcome, None, None]:
    """Runs one piece after the other in this process."""
    for piece in pieces:

        def report(share: float, text: str, piece: Piece = piece) -> None:
            board.report(piece.key, piece.title, share, text)

        report(0.0, "")
        try:
            do_piece(piece, store, machine, report)
        except KeyholeError as error:
            yield Outcome(piece, str(error))
        except Exception as defect:  # noqa: BLE001  raised again when all others have ended
            yield Outcome(piece, defect=defect)
        else:
            yield Outcome(piece)


def run_in_processes(
    pieces: Sequence[Piece], store: PieceStore, machine: Machine, board: Board, workers: int
) -> Generator[Outcome, None, None]:
    """Runs pieces in processes of their own, which end with this one."""
    context = multiprocessing.get_context("spawn")  # torch and CUDA do not survive a fork
    reports: Reports = context.SimpleQueue()
    pool = ProcessPoolExecutor(
        workers, mp_context=context, initializer=start_worker, initargs=(reports,)
    )
    running: dict[Future[str | None], Piece] = {}
    waiting = iter(pieces)
    try:
        while True:
            while len(running) < 2 * workers and (piece := next(waiting, None)) is not None:
                running[pool.submit(do_in_process, piece, store.place, machine)] = piece
            if not running:
                return
            done, _ = wait(running, SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED)
            for future in done:
                yield collect(running.pop(future), future)
            show_reports(reports, {piece.key for piece in running.values()}, board)
    except BrokenProcessPool:
        raise RunFolderError(
            "a process was killed, perhaps because memory ran out: run the same command again to "
            "continue, with fewer --workers"
        ) from None
    finally:
        for process in list((pool._processes or {}).values()) if running else ():
            process.terminate()  # a piece may take hours to end
        pool.shutdown(cancel_futures=True)


def show_reports(reports: Reports, at_work: Set[str], board: Board) -> None:
    """Shows what was reported of pieces at work; of others it comes too late."""
    while not reports.empty():
        report = reports.get()
        if report[0] in at_work:
            board.report(*report)


def collect(piece: Piece, future: Future[str | None]) -> Outcome:
    """What became of a piece in another process."""
    try:
        return Outcome(piece, future.result())
    except BrokenProcessPool:
        raise
    except Exception as defect:  # noqa: BLE001  raised again when all others have ended
        return Outcome(piece, defect=defect)


_reports: list[Reports] = []
"""Where a worker process sends its reports."""


def start_worker(reports: Reports) -> None:
    """Makes a process leave Ctrl-C to its parent, and end with it."""
    _reports.append(reports)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=exit_with_parent, daemon=True).start()


def exit_with_parent() -> None:
    """Waits for the parent process to end, then ends this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def do_in_process(piece: Piece, place: str, machine: Machine) -> str | None:
    """Runs a piece in a worker process; returns what the user can correct, if anything."""

    def report(share: float, text: str) -> None:
        _reports[-1].put((piece.key, piece.title, share, text))

    report(0.0, "")
    try:
        do_piece(piece, open_store(place), machine, report)
    except KeyholeError as error:
        return str(error)
    return None
