"""Runs pieces on a Ray cluster, as tasks with resources.

The driver holds no results, only what is at work: a piece's state and result are in the store,
which all machines share. A task whose worker or machine is lost is submitted again, and continues
where the piece stopped. So does a driver that is started again.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Generator, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from typing import Any

from keyhole.errors import DoesNotFit, KeyholeError, one_line
from keyhole.scale.board import Board
from keyhole.scale.outcome import Outcome
from keyhole.scale.piece import Machine, Piece
from keyhole.scale.piece_store import PieceStore
from keyhole.scale.ray_worker import ReportActor, do_on_worker

log = logging.getLogger("keyhole")

TRIES = 6
"""How often a piece is submitted whose workers die."""
LEAST_AHEAD = 8
AHEAD = 2.0
"""Tasks for each slot of the cluster that are submitted at once, so that no worker waits."""
SECONDS_BETWEEN_LOOKS = 0.5
PASSED_ON = ("KEYHOLE_DATA", "PYTHONPATH", "OMP_WAIT_POLICY")
"""Environment variables of the driver that its workers get."""


@dataclass(frozen=True)
class Ray:
    """A Ray cluster.

    Args:
        address: Its address, such as ``10.0.0.1:6379`` or ``auto``; None: that of
            ``RAY_ADDRESS``, else a cluster on this machine, which is started where there is none.
        options: What ``ray.init`` is given where a cluster is started, such as ``num_cpus``.
    """

    address: str | None = None
    options: tuple[tuple[str, Any], ...] = ()

    def run(
        self, pieces: Sequence[Piece], store: PieceStore, machine: Machine, board: Board
    ) -> Generator[Outcome, None, None]:
        """Runs pieces and yields what became of each, as they end.

        Args:
            pieces: Pieces that have no result yet.
            store: Where they keep their results: a folder that all machines share, or a URL.
            machine: What each may use.
            board: Shows where they stand.
        """
        ray = import_ray()
        with ExitStack() as stack:
            if not ray.is_initialized():
                # Ray prints there what becomes of workers, between the results of commands.
                stack.enter_context(redirect_stdout(sys.stderr))
                self.connect(ray)
                stack.callback(ray.shutdown)
            driver = Driver(ray, store, machine, board)
            stack.callback(driver.cancel)
            yield from driver.run(pieces)

    def connect(self, ray: Any) -> None:
        """Connects to the cluster.

        Args:
            ray: The module.
        """
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        passed = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        try:
            with warnings.catch_warnings():  # tips about later versions of Ray
                warnings.simplefilter("ignore", FutureWarning)
                ray.init(
                    address=self.address,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    runtime_env={"env_vars": passed},
                    **dict(self.options),
                )
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = self.address or "RAY_ADDRESS, or on this machine"
            raise KeyholeError(
                f"no Ray cluster at {where} ({one_line(error)}): start one with `ray start --head`"
            ) from None


def import_ray() -> Any:
    """Ray, or an error that says how to get it."""
    try:
        import ray
    except ImportError:
        raise DoesNotFit("Ray is not installed: pip install 'keyhole[ray]'") from None
    return ray


class Driver:
    """Submits pieces, a few ahead of the workers, and waits for them."""

    def __init__(self, ray: Any, store: PieceStore, machine: Machine, board: Board) -> None:
        self.ray, self.store, self.machine, self.board = ray, store, machine, board
        self.board.places = "on Ray"
        self.running: dict[Any, Piece] = {}
        self.tries: dict[str, int] = {}
        self.looked_at = float("-inf")
        self.reports = self.start_reports()
        self.work = ray.remote(do_on_worker).options(
            num_cpus=machine.cpus, num_gpus=machine.gpus, max_retries=0
        )

    def start_reports(self) -> Any:
        """Starts the actor that workers report to, on the driver's own machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), False)
        return self.ray.remote(ReportActor).options(num_cpus=0, scheduling_strategy=here).remote()

    def run(self, pieces: Sequence[Piece]) -> Generator[Outcome, None, None]:
        """Yields what became of each piece, as they end."""
        self.check_resources()
        waiting = iter(pieces)
        while True:
            room = self.count_slots() - len(self.running)
            while room > 0 and (piece := next(waiting, None)) is not None:
                self.submit(piece)
                room -= 1
            if not self.running:
                return
            done, _ = self.ray.wait(
                list(self.running), num_returns=1, timeout=SECONDS_BETWEEN_LOOKS
            )
            if done:  # those that have ended by now, without waiting for others
                done, _ = self.ray.wait(
                    list(self.running), num_returns=len(self.running), timeout=0
                )
            if time.monotonic() - self.looked_at >= SECONDS_BETWEEN_LOOKS:
                self.show_reports()
                self.looked_at = time.monotonic()
            for task in done:
                outcome = self.collect(task)
                if outcome is not None:
                    yield outcome

    def submit(self, piece: Piece) -> None:
        self.tries[piece.key] = self.tries.get(piece.key, 0) + 1
        task = self.work.remote(
            piece, self.store.place, self.machine, self.reports, os.getcwd(), sys.path[:1]
        )
        self.running[task] = piece

    def collect(self, task: Any) -> Outcome | None:
        """What became of a task; None where its worker was lost, and it is submitted again."""
        piece = self.running.pop(task)
        try:
            return Outcome(piece, self.ray.get(task))
        except self.ray.exceptions.RayTaskError as error:
            return Outcome(piece, defect=error.as_instanceof_cause())
        except self.ray.exceptions.RayError as error:  # the worker or its machine is gone
            self.board.drop(piece.key)
            if self.tries[piece.key] >= TRIES:
                return Outcome(piece, f"its worker was lost {TRIES} times ({one_line(error)})")
            log.info("a worker was lost: %s continues elsewhere", piece.title)
            self.submit(piece)
            return None

    def count_slots(self) -> int:
        """How many tasks to have submitted: a few more than the cluster can run at once."""
        there = self.ray.cluster_resources()
        slots = there.get("CPU", 0) / max(self.machine.cpus, 1e-9)
        if self.machine.gpus:
            slots = min(slots, there.get("GPU", 0) / self.machine.gpus)
        return max(LEAST_AHEAD, int(AHEAD * slots))

    def check_resources(self) -> None:
        """Raises where no machine of the cluster has what a piece needs."""
        needed = {"CPU": self.machine.cpus, "GPU": self.machine.gpus}
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(
            all(node.get(name, 0) >= count for name, count in needed.items()) for node in nodes
        ):
            raise DoesNotFit(
                f"no machine of the Ray cluster has {self.machine.cpus} CPUs and "
                f"{self.machine.gpus:g} GPUs for a piece: pass a smaller --cpus-per-piece or "
                "--gpus-per-piece"
            )

    def show_reports(self) -> None:
        """Shows what workers have reported; not at all where the actor is gone."""
        try:
            found = self.ray.get(self.reports.take.remote(), timeout=SECONDS_BETWEEN_LOOKS)
        except self.ray.exceptions.RayError:
            return
        at_work = {piece.key: piece.title for piece in self.running.values()}
        for key, (share, text) in found.items():
            if key in at_work:
                self.board.report(key, at_work[key], share, text)

    def cancel(self) -> None:
        """Stops what is still at work; its pieces can be continued."""
        for task in self.running:
            self.ray.cancel(task, force=True)
        self.running.clear()
