"""Runs cells of studies, several at once, within so many minutes, and packs what they found.

    python tools/run_cells.py --out $OUT --processes 4 dia:resnet18-mnist-p00 'csvar:large-*'
    python tools/run_cells.py --out $OUT --waiting dia     # all that have no whole result yet

Each cell is a process, ``keyhole study STUDY CELL``. Its result goes to
``OUT/results/STUDY/CELL.json``, what it prints to ``OUT/logs``. Cells that have a whole result in
``results/`` are left out. When the time is over, cells that run are interrupted; audits keep their
checkpoints in ``runs/``, so that the same command goes on where they were. At the end
``OUT/results.tar.gz`` holds all results: unpack it over the repository's ``results/``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from keyhole.progress import NullProgress
from keyhole_studies import STUDIES, load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.result_files import read_result

GRACE = 30
"""Seconds that an interrupted cell has to write its checkpoint."""


@dataclass(frozen=True)
class Job:
    """One cell: its study and its name."""

    study: str
    cell: str


@dataclass(frozen=True)
class Running:
    """A job's process, and the log that it writes to."""

    job: Job
    process: subprocess.Popen[bytes]
    log: IO[bytes]


def choose_jobs(patterns: Sequence[str], results: Path, *, all_waiting: bool) -> list[Job]:
    """The cells that patterns such as ``dia:vit-*`` name and that have no whole result.

    Args:
        patterns: ``STUDY:PATTERN``, or ``STUDY`` for all of its cells.
        results: The folder of all studies' results.
        all_waiting: Whether a study without a pattern is allowed.
    """
    jobs = []
    for pattern in patterns:
        name, colon, cells = pattern.partition(":")
        if not colon and not all_waiting:
            raise SystemExit(f"{pattern}: write STUDY:CELL, or add --waiting for the whole study")
        if name not in STUDIES:
            raise SystemExit(f"{name}: there is no such study; there are {', '.join(STUDIES)}")
        study = load_study(name)
        context = StudyContext(Path("runs"), None, "auto", NullProgress())
        for experiment in study.choose([cells] if colon else []):
            known = read_result(results / name, experiment.name)
            job = Job(name, experiment.name)
            if job not in jobs and (known is None or not experiment.covers(known, context)):
                jobs.append(job)
    return jobs


def start(job: Job, out: Path, options: Sequence[str]) -> Running:
    """Starts a job's process."""
    (out / "logs").mkdir(parents=True, exist_ok=True)
    log = (out / "logs" / f"{job.study}-{job.cell}.log").open("wb")
    command = [sys.executable, "-m", "keyhole", "study", job.study, job.cell]
    command += ["--results", str(out / "results" / job.study), *options]
    return Running(job, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), log)


def run_jobs(
    jobs: Sequence[Job], out: Path, *, processes: int, seconds: float, options: Sequence[str]
) -> Iterator[tuple[Job, str]]:
    """Runs jobs, so many at once, and yields each with how it ended.

    Args:
        jobs: What to run, in this order.
        out: Where results and logs go.
        processes: Jobs at once.
        seconds: When those that still run are interrupted.
        options: Further options of ``keyhole study``.
    """
    began, waiting, running = time.monotonic(), list(jobs), list[Running]()
    while waiting or running:
        over = time.monotonic() - began > seconds
        while waiting and len(running) < processes and not over:
            running.append(start(waiting.pop(0), out, options))
        if over:
            yield from ((job, "not begun") for job in waiting)
            yield from ((one.job, stop(one)) for one in running)
            return
        for one in [r for r in running if r.process.poll() is not None]:
            running.remove(one)
            one.log.close()
            code = one.process.returncode
            yield one.job, "done" if code == 0 else f"failed with {code}: see its log"
        time.sleep(0.2)


def stop(one: Running) -> str:
    """Interrupts a job, so that it writes a checkpoint; returns how it ended."""
    one.process.send_signal(signal.SIGINT)
    try:
        one.process.wait(GRACE)
    except subprocess.TimeoutExpired:
        one.process.kill()
        one.process.wait()
    one.log.close()
    return "done" if one.process.returncode == 0 else "interrupted: the same command goes on"


def pack(out: Path) -> Path:
    """Packs all results of ``out`` and returns the archive."""
    path = out / "results.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in sorted((out / "results").rglob("*.json")):
            archive.add(file, arcname=file.relative_to(out / "results").as_posix())
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="+", help="STUDY:CELL, a pattern, or STUDY with --waiting")
    parser.add_argument("--out", type=Path, required=True, help="folder of results and logs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results so far")
    parser.add_argument("--processes", type=int, default=4, help="cells at once")
    parser.add_argument("--minutes", type=float, default=9.0, help="then cells are interrupted")
    parser.add_argument("--waiting", action="store_true", help="allow whole studies")
    parser.add_argument("--options", default="", help="more options of keyhole study")
    given = parser.parse_args(arguments)
    jobs = choose_jobs(given.cells, given.results, all_waiting=given.waiting)
    print(f"{len(jobs)} cells", flush=True)
    failed = False
    for job, ended in run_jobs(
        jobs,
        given.out,
        processes=given.processes,
        seconds=60 * given.minutes,
        options=given.options.split(),
    ):
        failed |= ended.startswith("failed")
        print(f"{job.study} {job.cell}: {ended}", flush=True)
    print(pack(given.out))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
