"""Measures what a piece of an audit takes, on few victims and iterations, in a process of its own.

Time is taken as ``fixed + victims * (each + iterations * step)``: three runs give the three.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

from keyhole.auditing.plan import Plan, Stage
from keyhole.errors import KeyholeError, one_line
from keyhole.progress import Progress
from keyhole.scale.piece import Machine
from keyhole.scale.worker import limited_threads, read_peak_memory
from keyhole.settings import make_settings

FEW, MORE = 5, 25
"""Iterations of the measured runs."""
TURNS, SHORT = 5, 1.0
"""Runs at most, and seconds after which none is repeated."""
SAME = (
    *("model", "data", "image_size", "batch_size", "aggregate", "steps", "lr", "repeats"),
    *("client_mode", "parity", "weights", "attacks"),
)
"""Fields of a stage that its time depends on, besides victims and iterations."""


@dataclass(frozen=True)
class Pace:
    """What pieces of one kind take.

    Args:
        fixed: Seconds before the first client trains.
        each: Seconds for each victim.
        step: Seconds for each iteration on each victim.
        iterations: Iterations of the attack, if the stage does not say how many.
        peak_mb: The most memory that the measured process held, in megabytes.
    """

    fixed: float
    each: float
    step: float
    iterations: int
    peak_mb: float

    def estimate(self, stage: Stage) -> float:
        """Seconds that a stage takes.

        Args:
            stage: The stage, of this kind.
        """
        steps = min(stage.iterations or self.iterations, self.iterations)
        return self.fixed + stage.victims * (self.each + steps * self.step)


def kind_of(stage: Stage) -> str:
    """What tells stages of different times apart."""
    names = [name.partition("(")[0] for name in stage.defenses]
    return repr([str(getattr(stage, name)) for name in SAME] + names)


def run_probe(values: Mapping[str, Any], seed: int, machine: Machine) -> Pace:
    """Runs a stage on few victims and iterations and takes the time."""
    with limited_threads(machine.cpus):
        iterations = count_iterations(values, seed, machine)
        few = min(FEW, iterations or FEW)
        time_run(values, seed, machine, victims=1, iterations=few)  # what is imported late
        base = time_run(values, seed, machine, victims=1, iterations=few)
        wide = time_run(values, seed, machine, victims=2, iterations=few)
        long = time_run(values, seed, machine, victims=1, iterations=MORE) if iterations else base
    step = max(0.0, long - base) / (MORE - few) if iterations > few else 0.0
    each = max(0.0, wide - base - few * step)
    fixed = max(0.0, base - each - few * step)
    return Pace(fixed, each, step, iterations, read_peak_memory())


def time_run(
    values: Mapping[str, Any], seed: int, machine: Machine, *, victims: int, iterations: int
) -> float:
    """Seconds of an audit that keeps nothing; of short ones the fastest, since others only add."""
    from keyhole.auditing.launch import build_plan_settings, run_in_folder

    plan = make_probe(values, seed, victims, iterations)
    taken: list[float] = []
    while len(taken) < TURNS and sum(taken) < SHORT:
        began = time.perf_counter()
        settings, _ = build_plan_settings(plan, data_dir=machine.data_dir, device=machine.device)
        run_in_folder(settings, plan, None, data_dir=machine.data_dir)
        taken.append(time.perf_counter() - began)
    return min(taken)


def make_probe(values: Mapping[str, Any], seed: int, victims: int, iterations: int | None) -> Plan:
    """A plan of few victims and iterations."""
    changed: dict[str, Any] = {**values, "victims": min(victims, int(values["victims"]))}
    if iterations is not None:
        changed["iterations"] = iterations
    return make_settings(Plan, {"seed": seed, "stage": (changed,)})


def count_iterations(values: Mapping[str, Any], seed: int, machine: Machine) -> int:
    """The most iterations of a stage's attacks; 0 if none of them iterates."""
    from keyhole.auditing.launch import build_plan_settings
    from keyhole.parameters import read_parameters

    plan = make_probe(values, seed, 1, None)
    settings, _ = build_plan_settings(plan, data_dir=machine.data_dir, device=machine.device)
    found = [
        read_parameters(run.attack).get("iterations") for each in settings for run in each.runs
    ]
    return max((count for count in found if isinstance(count, int)), default=0)


def measure_all(
    stages: Sequence[tuple[Stage, int]], machine: Machine, most: int, progress: Progress
) -> dict[str, Pace]:
    """The pace of each kind of stage, of at most so many kinds; captured folders are left out.

    Args:
        stages: Stages of one defense and one attack, with their seeds.
        machine: What they may use.
        most: The most kinds to measure.
        progress: Shows which is measured.
    """
    first: dict[str, tuple[Stage, int]] = {}
    for stage, seed in stages:
        if stage.captured is None:
            first.setdefault(kind_of(stage), (stage, seed))
    chosen = dict(list(first.items())[:most])
    if not chosen:
        return {}
    progress.begin(len(chosen))
    found: dict[str, Pace] = {}
    context = multiprocessing.get_context("spawn")  # its peak of memory is its own
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        for kind, (stage, seed) in chosen.items():
            what = f"{', '.join(stage.attacks)} against {', '.join(stage.defenses)}, {stage.model}"
            progress.show(f"a probe of {what}")
            try:
                values = stage.model_dump(mode="json")
                found[kind] = pool.submit(run_probe, values, seed, machine).result()
            except (BrokenProcessPool, KeyholeError) as error:
                raise KeyholeError(
                    f"{what} cannot be measured ({one_line(error)}): pass --no-probe"
                ) from None
            progress.advance(1)
    return found
