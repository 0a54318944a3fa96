"""What Ray costs a piece, and what a second worker brings.

    python benchmarks/ray_pieces.py                 # 1,000 small pieces, then busy ones
    python benchmarks/ray_pieces.py --json          # one JSON object
    python benchmarks/ray_pieces.py --pieces 50 --busy 2 --seconds 0.2

``overhead_ms`` is the time of the small pieces over their number: they do nothing, so all of it is
scheduling, and writing each result so that it would survive a power cut. ``overhead_cpu_ms`` is
the processor time of all processes for each of them, which other work on the machine changes
less. ``driver_mb`` is the memory of this process after a tenth of them and after all; it must not
grow with their number.
``two_over_one`` is how much faster two workers are than one on pieces that keep a core busy: both
in one run, in turns, on a cluster of two cores, by letting a piece reserve both cores or one.
``others_share`` is the part of the machine's processor time that other work took meanwhile: the
ratio says something only where it is small.
Starting Ray and its workers, which import torch, does not count. About two minutes on two quiet
cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

from keyhole.progress import NullProgress
from keyhole.scale import Machine, Piece, PieceStore, Ray, Workspace, build_piece, run_pieces

OBJECT_STORE = 200 << 20
CORES = 2
WHOLE, ONE = Machine(device="cpu", cpus=CORES), Machine(device="cpu", cpus=1)


def nothing(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """A piece that costs nothing itself."""
    return {"number": values["number"]}


def keep_busy(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """A piece that keeps one core busy, with the same work each time."""
    state = str(values["number"]).encode()
    for _ in range(values["rounds"]):
        state = hashlib.sha256(state).digest()
    return {"state": state.hex()}


def meet(values: Mapping[str, Any], space: Workspace) -> dict[str, Any]:
    """A piece that ends when so many workers are at work."""
    place = Path(values["place"])
    place.mkdir(exist_ok=True)
    (place / str(values["number"])).touch()
    while len(list(place.iterdir())) < values["workers"]:
        time.sleep(0.01)
    return {}


def make_pieces(work: str, count: int, label: str, **values: Any) -> list[Piece]:
    return [
        build_piece(f"ray_pieces:{work}", {"number": n, "label": label, **values})
        for n in range(count)
    ]


def read_memory() -> float:
    """The memory of this process, in megabytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise OSError("/proc does not say how much memory this process has")


def read_processor_seconds() -> tuple[dict[int, float], dict[int, float]]:
    """Processor time of this process and those below it, and of all others, by their number."""
    parents, seconds = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            words = (folder / "stat").read_text().rpartition(")")[2].split()
            parents[int(folder.name)] = int(words[1])
            seconds[int(folder.name)] = (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    own, added = {os.getpid()}, True
    while added:
        more = {number for number, parent in parents.items() if parent in own} - own
        own, added = own | more, bool(more)
    return (
        {number: spent for number, spent in seconds.items() if number in own},
        {number: spent for number, spent in seconds.items() if number not in own},
    )


def add_growth(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Processor time between two readings; who ended in between is not counted."""
    return sum(spent - before.get(number, 0.0) for number, spent in after.items())


class MemoryMarks(NullProgress):
    """Notes the memory of the driver when a tenth of the pieces is done, and at the end."""

    def begin(self, total: int) -> None:
        self.total, self.done = total, 0
        self.marks: dict[str, float] = {}

    def advance(self, units: int) -> None:
        self.done += units
        if self.done >= self.total // 10 and "a_tenth" not in self.marks:
            self.marks["a_tenth"] = round(read_memory(), 1)
        if self.done == self.total:
            self.marks["all"] = round(read_memory(), 1)


class Clock(NullProgress):
    """Starts when so many pieces are finished: workers have started and imported torch by then."""

    def __init__(self, after: int) -> None:
        self.left = after

    def advance(self, units: int) -> None:
        self.left -= units
        if self.left == 0:
            self.began = time.perf_counter()


def measure_overhead(store: PieceStore, count: int) -> dict[str, Any]:
    """Milliseconds for each of so many pieces that do nothing, and the driver's memory."""
    marks = MemoryMarks()
    began, (before, _) = time.perf_counter(), read_processor_seconds()
    run_pieces(make_pieces("nothing", count, "small"), store, on=Ray(), machine=ONE, progress=marks)
    seconds, (after, _) = time.perf_counter() - began, read_processor_seconds()
    return {
        "pieces": count,
        "overhead_ms": 1000 * seconds / count,
        "overhead_cpu_ms": 1000 * add_growth(before, after) / count,
        "driver_mb": marks.marks,
    }


def measure_speedup(store: PieceStore, count: int, seconds: float, turns: int) -> dict[str, Any]:
    """How much faster two workers are than one, turn by turn."""
    began = time.perf_counter()
    keep_busy({"number": 0, "rounds": 200_000}, Workspace(Path()))
    rounds = max(1, round(200_000 * seconds / (time.perf_counter() - began)))
    times: dict[str, list[float]] = {"one": [], "two": []}
    whole, (_, before) = time.perf_counter(), read_processor_seconds()
    for turn in range(turns):
        for who, machine, workers in (("one", WHOLE, 1), ("two", ONE, CORES)):
            label, clock = f"{who} {turn}", Clock(workers)
            place = str(store.root / f"meet {label}")
            first = make_pieces("meet", workers, label, workers=workers, place=place)
            pieces = make_pieces("keep_busy", count, label, rounds=rounds)
            run_pieces([*first, *pieces], store, on=Ray(), machine=machine, progress=clock)
            times[who].append(time.perf_counter() - clock.began)
    _, after = read_processor_seconds()
    whole = (time.perf_counter() - whole) * (os.cpu_count() or 1)
    ratios = [one / two for one, two in zip(times["one"], times["two"], strict=True)]
    return {
        "busy_pieces": count,
        "turns": turns,
        "seconds_with_one": median(times["one"]),
        "seconds_with_two": median(times["two"]),
        "two_over_one": median(ratios),
        "range_two_over_one": [min(ratios), max(ratios)],
        "others_share": add_growth(before, after) / whole,
    }


def main() -> None:
    """Measures, and prints what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pieces", type=int, default=1000, help="small pieces")
    parser.add_argument("--busy", type=int, default=12, help="pieces that keep a core busy")
    parser.add_argument("--seconds", type=float, default=1.0, help="of each busy piece")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    asked = parser.parse_args()

    import ray

    before = round(os.getloadavg()[0], 1)
    here = str(Path(__file__).resolve().parent)
    os.environ["PYTHONPATH"] = os.pathsep.join([here, *filter(None, sys.path)])  # for workers
    with tempfile.TemporaryDirectory(prefix="kr") as home:
        options = {"num_cpus": CORES, "object_store_memory": OBJECT_STORE}
        Ray("local", (*options.items(), ("include_dashboard", False))).connect(ray)
        try:
            store = PieceStore(Path(home))
            warm = make_pieces("nothing", 4 * CORES, "warm")  # workers start and import torch
            run_pieces(warm, store, on=Ray(), machine=ONE)
            found = measure_overhead(store, asked.pieces)
            found |= measure_speedup(store, asked.busy, asked.seconds, asked.turns)
        finally:
            ray.shutdown()
    found |= {
        "ray": ray.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "load_before": before,
    }
    if asked.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<20} {round(value, 3) if isinstance(value, float) else value}")


if __name__ == "__main__":
    main()
