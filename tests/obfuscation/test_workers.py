from __future__ import annotations

import os
import time

import pytest
import torch

from keyhole.errors import BadValue, RunFolderError
from keyhole.obfuscation.workers import count_cores, count_workers, run_tasks, run_with_progress


def square(number: int) -> int:
    return number * number


def whereabouts(number: int) -> tuple[int, int]:
    time.sleep(0.01)
    return os.getpid(), torch.get_num_threads()


def fall(number: int) -> int:
    if number == 3:
        os._exit(1)
    return number


def refuse(number: int) -> int:
    raise RunFolderError(f"no room for {number}")


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_is_done_once(jobs: int) -> None:
    assert sorted(run_tasks(square, range(50), jobs=jobs)) == [n * n for n in range(50)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_process_works_on_one_thread(jobs: int) -> None:
    before = torch.get_num_threads()
    found = list(run_tasks(whereabouts, range(20), jobs=jobs))
    assert {threads for _, threads in found} == {1}
    assert len({process for process, _ in found}) == jobs
    assert (os.getpid() in {process for process, _ in found}) == (jobs == 1)
    assert torch.get_num_threads() == before


def test_tasks_are_handed_out_as_they_are_needed() -> None:
    taken = []

    def tasks():
        for number in range(100):
            taken.append(number)
            yield number

    results = run_tasks(square, tasks(), jobs=2)
    next(results)
    assert len(taken) < 20
    results.close()


def test_a_process_that_dies_is_told_of() -> None:
    with pytest.raises(RunFolderError, match="run the same command again"):
        list(run_tasks(fall, range(10), jobs=2))


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_the_user_come_through(jobs: int) -> None:
    with pytest.raises(RunFolderError, match="no room for"):
        list(run_tasks(refuse, range(10), jobs=jobs))


class Watch:
    def __init__(self) -> None:
        self.total = self.done = 0
        self.texts: list[str] = []

    def begin(self, total: int) -> None:
        self.total = total

    def show(self, what: str) -> None:
        self.texts.append(what)

    def advance(self, units: int) -> None:
        self.done += units


def test_progress_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keyhole.obfuscation.workers.REFRESH_SECONDS", 0.0)
    watch = Watch()
    assert list(run_with_progress(square, range(5), "squaring", 1, watch)) == [0, 1, 4, 9, 16]
    assert (watch.total, watch.done, watch.texts[0]) == (5, 5, "squaring")
    assert watch.texts[-1].endswith("images/s")
    assert list(run_with_progress(square, [], "squaring", 8, None)) == []


def test_the_size_of_a_crew() -> None:
    assert count_workers(None) == count_cores() >= 1
    assert count_workers(3) == 3
    with pytest.raises(BadValue, match="got 0"):
        count_workers(0)
