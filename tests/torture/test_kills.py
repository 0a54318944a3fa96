"""Killed at any event and any moment, a run goes on by the same command to the same bits."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from torture.jobs import FRESH, JOBS, SMALL, Job
from torture.kills import Ended, copy_tree, run_command

SEED = 0
KILLS = int(os.environ.get("KILLS", "200"))


@dataclass
class Trial:
    """One job's uninterrupted run, and what becomes of it when it is killed."""

    job: Job
    root: Path
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = self.root / "before"
        self.before.mkdir()
        self.job.prepare(self.before)
        whole = self.root / "whole"
        copy_tree(self.before, whole)
        self.whole: Ended = run_command(whole, self.job.work)
        assert self.whole.code == 0, self.whole.text
        self.expected: dict[str, Any] = self.job.results(whole)
        assert self.expected["left behind"] == []

    def kill(
        self,
        *,
        at: int | None = None,
        after: float | None = None,
        by: signal.Signals = signal.SIGKILL,
    ) -> None:
        """One kill, then the same command to its end."""
        folder = self.root / "run"
        copy_tree(self.before, folder)
        stopped = run_command(folder, self.job.work, at=at, after=after, by=by)
        expected = 130 if by == signal.SIGINT else -by
        self.counts["kills" if stopped.code == expected else "came too late"] += 1
        ended = run_command(folder, self.job.work)
        self.counts["tracebacks"] += "Traceback" in stopped.text + ended.text
        self.counts["hangs"] += 124 in (stopped.code, ended.code)
        where = f"{self.job.name}, killed " + (
            f"at event {at}" if after is None else f"{after:.3f} s"
        )
        if ended.code != 0:
            self.counts["not resumed"] += 1
            self.faults.append(f"{where}: exit code {ended.code}: {ended.text.strip()[-300:]}")
            return
        found = self.job.results(folder)
        differ = [name for name in self.expected if found.get(name) != self.expected[name]]
        self.counts["changed"] += bool(differ)
        if differ:
            self.faults.append(f"{where}: {', '.join(differ)} differ")


def spread(count: int, most: int) -> list[int]:
    """So many numbers below ``most``, evenly."""
    return sorted({round(i * (most - 1) / max(1, count - 1)) for i in range(min(count, most))})


@pytest.fixture
def trial(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trial]:
    made = Trial(request.param, tmp_path)
    yield made
    told = ", ".join(f"{made.counts[k]} {k}" for k in ("kills", "tracebacks", "hangs", "changed"))
    print(f"\n{made.job.name}: {made.whole.events} events, {made.whole.seconds:.2f} s; {told}")


def check(trial: Trial, kills: int) -> None:
    assert trial.faults == []
    assert trial.counts["kills"] >= kills
    assert trial.counts["tracebacks"] == trial.counts["hangs"] == 0


@pytest.mark.parametrize(
    ("trial", "shares"),
    [(SMALL, (0.2, 0.75)), (JOBS[1], (0.5,)), (JOBS[2], (0.3, 0.9)), (FRESH[1], (0.08, 0.15))],
    ids=lambda value: getattr(value, "name", ""),
    indirect=["trial"],
)
def test_a_few_kills(trial: Trial, shares: tuple[float, ...]) -> None:
    for share in shares:
        trial.kill(at=int(share * trial.whole.events))
    check(trial, len(shares))


@pytest.mark.torture
@pytest.mark.parametrize("trial", [*JOBS, *FRESH], ids=lambda job: job.name, indirect=True)
def test_kills_at_every_event_and_at_random_moments(trial: Trial) -> None:
    count = -(-KILLS // len((*JOBS, *FRESH)))
    draw = random.Random(f"{SEED} {trial.job.name}")
    for event in spread(-(-2 * count // 3), trial.whole.events):
        trial.kill(at=event)
    while trial.counts["kills"] < count:
        trial.kill(after=draw.uniform(0, trial.whole.seconds))
    check(trial, count)


@pytest.mark.torture
@pytest.mark.parametrize("trial", [*JOBS[:3], JOBS[4]], ids=lambda job: job.name, indirect=True)
def test_ctrl_c_at_random_moments(trial: Trial) -> None:
    draw = random.Random(f"{SEED} {trial.job.name}")
    count = -(-KILLS // 40)
    while trial.counts["kills"] < count:
        trial.kill(after=draw.uniform(0, trial.whole.seconds), by=signal.SIGINT)
    check(trial, count)
