"""Runs cells of studies, several at once, within so many minutes, and packs what they found.

    python tools/run_cells.py --out $OUT --processes 4 dia:resnet18-mnist-p00 'csvar:large-*'
    python tools/run_cells.py --out $OUT --waiting dia     # all that have no whole result yet
    python tools/run_cells.py --out $OUT --queue tools/papers_queue.toml    # the best value first

Each cell is a process, ``keyhole study STUDY CELL``. Its result goes to
``OUT/results/STUDY/CELL.json``, what it prints to ``OUT/logs``. Cells that have a whole result in
``results/`` are left out. When the time is over, cells that run are interrupted; audits keep their
checkpoints in ``runs/``, so that the same command goes on where they were. At the end
``OUT/results.tar.gz`` holds all results: unpack it over the repository's ``results/``.

A queue says how long cells take. Those with the most figures of the paper per minute come first,
and none is begun that would not end in time. Weights that other cells of the queue attack are
packed as ``OUT/weights.tar.gz``; on another machine ``--weights`` unpacks them into ``runs/``.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from keyhole.progress import NullProgress
from keyhole_studies import STUDIES, load_study
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.result_files import read_result

GRACE = 30
"""Seconds that an interrupted cell has to write its checkpoint."""
RUNS = Path("runs")


@dataclass(frozen=True)
class Job:
    """One cell: its study and its name, and what a queue says of it.

    Args:
        study: The study.
        cell: The cell.
        minutes: How long it takes alone; 0: nobody knows.
        after: Cells of the study whose weights it attacks.
        alone: Whether nothing may run beside it.
        resumes: Whether it may be begun when less time is left than it takes.
        value: Figures of the paper that it stands beside, and of cells that attack its weights.
    """

    study: str
    cell: str
    minutes: float = 0.0
    after: tuple[str, ...] = ()
    alone: bool = False
    resumes: bool = False
    value: int = field(default=1, compare=False)

    def weights(self) -> list[Path]:
        """The files of weights that it attacks."""
        return [RUNS / f"study-{self.study}" / name / "weights.safetensors" for name in self.after]


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
    jobs: list[Job] = []
    for pattern in patterns:
        name, colon, cells = pattern.partition(":")
        if not colon and not all_waiting:
            raise SystemExit(f"{pattern}: write STUDY:CELL, or add --waiting for the whole study")
        for experiment in find_waiting(name, [cells] if colon else [], results):
            jobs.append(Job(name, experiment.name))
    return list(dict.fromkeys(jobs))


def find_waiting(name: str, patterns: Sequence[str], results: Path) -> Iterator[Experiment]:
    """The experiments of a study that patterns name and that have no whole result."""
    context = StudyContext(RUNS, None, "auto", NullProgress())
    for experiment in find_study(name).choose(patterns):
        known = read_result(results / name, experiment.name)
        if known is None or not experiment.covers(known, context):
            yield experiment


def find_study(name: str) -> Study:
    if name not in STUDIES:
        raise SystemExit(f"{name}: there is no such study; there are {', '.join(STUDIES)}")
    return load_study(name)


def read_queue(queue: Path, results: Path) -> list[Job]:
    """The jobs of a queue that wait, those with the most figures per minute first."""
    tables = tomllib.loads(queue.read_text(encoding="utf-8"))
    jobs: dict[tuple[str, str], Job] = {}
    for study, cells in tables.items():
        for pattern, said in cells.items():
            after = tuple(said.get("after", ()))
            for experiment in find_waiting(study, [pattern], results):
                value = count_figures(experiment.paper)
                job = Job(study, experiment.name, **{**said, "after": after}, value=value)
                jobs.setdefault((study, experiment.name), job)
    for job in list(jobs.values()):
        for name in job.after:
            if (one := jobs.get((job.study, name))) is not None:
                jobs[job.study, name] = replace(one, value=one.value + job.value)
    return sorted(jobs.values(), key=lambda job: -job.value / job.minutes)


def count_figures(paper: Any) -> int:
    """How many figures of the paper a cell has, one at least.

    >>> count_figures({"ig": {"ssim": 0.5, "psnr": 14.0}}), count_figures({})
    (2, 1)
    """
    if not hasattr(paper, "values"):
        return 1
    return max(1, sum(count_figures(value) for value in paper.values()))


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
        left = seconds - (time.monotonic() - began)
        while len(running) < processes:
            chosen = choose_next(waiting, running, left, processes)
            if chosen is None:
                break
            waiting.remove(chosen)
            running.append(start(chosen, out, options))
        if left <= 0 or not running:
            yield from ((one.job, stop(one)) for one in running)
            yield from ((job, f"not begun: {say_why(job, left)}") for job in waiting)
            return
        for one in [r for r in running if r.process.poll() is not None]:
            running.remove(one)
            one.log.close()
            code = one.process.returncode
            yield one.job, "done" if code == 0 else f"failed with {code}: see its log"
        time.sleep(0.2)


def choose_next(
    waiting: Sequence[Job], running: Sequence[Running], left: float, processes: int
) -> Job | None:
    """The first job that may be begun now; None: there is none.

    Args:
        waiting: Jobs in their order.
        running: What runs.
        left: Seconds.
        processes: Jobs at once, by which each takes longer at worst.
    """
    if left <= 0 or any(one.job.alone for one in running):
        return None
    for job in waiting:
        shared = 1 if job.alone else processes
        fits = job.resumes or 60 * job.minutes * shared <= left
        if fits and not (job.alone and running) and all(p.is_file() for p in job.weights()):
            return job
    return None


def say_why(job: Job, left: float) -> str:
    """Why a job was not begun."""
    missing = [path.parent.name for path in job.weights() if not path.is_file()]
    if missing:
        return f"it attacks the weights of {', '.join(missing)}"
    return "the time is over" if left <= 0 else f"{left / 60:.1f} minutes are too few"


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


def pack_weights(jobs: Sequence[Job], out: Path) -> Path | None:
    """Packs the weights that jobs attack, as far as there are any, and returns the archive."""
    found = sorted({file for job in jobs for file in job.weights() if file.is_file()})
    if not found:
        return None
    path = out / "weights.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file in found:
            archive.add(file, arcname=file.relative_to(RUNS).as_posix())
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cells", nargs="*", help="STUDY:CELL, a pattern, or STUDY with --waiting")
    parser.add_argument("--queue", type=Path, help="cells and their minutes, as TOML")
    parser.add_argument("--out", type=Path, required=True, help="folder of results and logs")
    parser.add_argument("--results", type=Path, default=Path("results"), help="results so far")
    parser.add_argument("--processes", type=int, default=4, help="cells at once")
    parser.add_argument("--minutes", type=float, default=9.0, help="then cells are interrupted")
    parser.add_argument("--waiting", action="store_true", help="allow whole studies")
    parser.add_argument("--weights", type=Path, help="an archive of weights from another machine")
    parser.add_argument("--dry", action="store_true", help="list the cells, and run none")
    parser.add_argument("--options", default="", help="more options of keyhole study")
    given = parser.parse_args(arguments)
    if bool(given.cells) == (given.queue is not None):
        parser.error("name cells, or a --queue")
    if given.queue is None:
        jobs = choose_jobs(given.cells, given.results, all_waiting=given.waiting)
    else:
        jobs = read_queue(given.queue, given.results)
    print(f"{len(jobs)} cells, {sum(job.minutes for job in jobs):.0f} minutes", flush=True)
    if given.dry:
        for job in jobs:
            print(f"{job.minutes:5.1f} min  {job.value} figures  {job.study} {job.cell}")
        return 0
    if given.weights is not None:
        with tarfile.open(given.weights) as archive:
            archive.extractall(RUNS, filter="data")
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
    if weights := pack_weights(jobs, given.out):
        print(weights)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
