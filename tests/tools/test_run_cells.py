"""Cells run as processes of their own, are stopped in time, and their results are packed."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from keyhole_studies import load_study
from scripts import ROOT, load_script

SCRIPT = load_script("tools/run_cells.py")
WRITES = """
from pathlib import Path
Path(r"{0}").mkdir(parents=True)
Path(r"{0}/a.json").write_text("{{}}")
"""


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """What each cell runs in place of `keyhole study`."""
    texts: dict[str, str] = {}

    def start(job, out, options):
        log = (tmp_path / f"{job.cell}.log").open("wb")
        process = subprocess.Popen([sys.executable, "-c", texts[job.cell]], stderr=log)
        return SCRIPT.Running(job, process, log)

    monkeypatch.setattr(SCRIPT, "start", start)
    return texts


def run(programs, tmp_path: Path, *, seconds: float, processes: int) -> dict[str, str]:
    jobs = [SCRIPT.Job("dia", name) for name in programs]
    ended = SCRIPT.run_jobs(
        jobs, tmp_path / "out", processes=processes, seconds=seconds, options=[]
    )
    return {job.cell: words for job, words in ended}


def test_cells_end_well_or_badly_and_their_results_are_packed(programs, tmp_path: Path) -> None:
    programs["good"] = WRITES.format(tmp_path / "out" / "results" / "dia")
    programs["bad"] = "raise SystemExit(2)"
    found = run(programs, tmp_path, seconds=60, processes=2)
    assert found == {"good": "done", "bad": "failed with 2: see its log"}
    with tarfile.open(SCRIPT.pack(tmp_path / "out")) as archive:
        assert archive.getnames() == ["dia/a.json"]


def test_what_runs_when_the_time_is_over_is_interrupted(programs, tmp_path: Path) -> None:
    programs["slow"] = "import time; time.sleep(60)"
    programs["later"] = "pass"
    found = run(programs, tmp_path, seconds=0.3, processes=1)
    assert found == {"slow": "interrupted: the same command goes on", "later": "not begun"}


def test_cells_with_a_whole_result_are_left_out(tmp_path: Path) -> None:
    names = [e.name for e in load_study("dia").choose(["lenet-mnist-*"])]
    assert [j.cell for j in SCRIPT.choose_jobs(["dia:lenet-mnist-*"], tmp_path, all_waiting=False)]
    (tmp_path / "dia").mkdir()
    shutil.copy(ROOT / "results" / "dia" / f"{names[0]}.json", tmp_path / "dia")
    jobs = SCRIPT.choose_jobs(["dia:lenet-mnist-*", "dia:*mnist-p75"], tmp_path, all_waiting=False)
    cells = [job.cell for job in jobs]
    assert names[0] not in cells
    assert set(names[1:]) < set(cells)
    assert len(cells) == len(set(cells))


def test_a_whole_study_must_be_asked_for(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--waiting"):
        SCRIPT.choose_jobs(["dia"], tmp_path, all_waiting=False)
    assert len(SCRIPT.choose_jobs(["dia"], tmp_path, all_waiting=True)) > 60
    with pytest.raises(SystemExit, match="there is no such study"):
        SCRIPT.choose_jobs(["dai:x"], tmp_path, all_waiting=False)
