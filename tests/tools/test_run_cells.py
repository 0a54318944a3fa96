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
    assert found["slow"] == "interrupted: the same command goes on"
    assert found["later"] == "not begun: the time is over"


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


QUEUE = ROOT / "tools" / "papers_queue.toml"
PAPERS = ("dia", "mjp", "csvar", "tip")


def test_the_queue_holds_every_cell_that_waits_for_a_gpu(tmp_path: Path) -> None:
    """All that have no whole result, but for what a CPU does within minutes."""
    jobs = SCRIPT.read_queue(QUEUE, ROOT / "results")
    queued = {(job.study, job.cell) for job in jobs}
    waiting = {(s, e.name) for s in PAPERS for e in SCRIPT.find_waiting(s, [], ROOT / "results")}
    assert queued <= waiting
    assert all(name.startswith(("see-", "rounds-deit-")) for _, name in waiting - queued)
    worth = [job.value / job.minutes for job in jobs]
    assert worth == sorted(worth, reverse=True)
    for job in jobs:
        names = {experiment.name for experiment in load_study(job.study).experiments}
        assert set(job.after) <= names
    everything = SCRIPT.read_queue(QUEUE, tmp_path)
    assert {p for job in everything for p in job.weights()} == {
        Path("runs/study-mjp") / name / "weights.safetensors"
        for name in ("full-deit-A-s0", "full-deit-J-s0")
    }


def make_job(name: str, **said) -> object:
    return SCRIPT.Job("mjp", name, **said)


def test_what_fits_the_time_is_begun_and_what_attacks_weights_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    long, short = make_job("long", minutes=5), make_job("short", minutes=1)
    assert SCRIPT.choose_next([long, short], [], 240, 1) == short
    assert SCRIPT.choose_next([long, short], [], 400, 1) == long
    assert SCRIPT.choose_next([long], [], 400, 2) is None, "two at once take twice as long at worst"
    audit = make_job("audit", minutes=60, resumes=True)
    assert SCRIPT.choose_next([long, audit], [], 60, 1) == audit
    attack = make_job("attack", minutes=1, after=("victim",))
    assert SCRIPT.choose_next([attack], [], 240, 1) is None
    assert SCRIPT.say_why(attack, 240) == "it attacks the weights of victim"
    (weights,) = attack.weights()
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"w")
    assert SCRIPT.choose_next([attack], [], 240, 1) == attack
    (tmp_path / "out").mkdir()
    with tarfile.open(SCRIPT.pack_weights([attack, short], tmp_path / "out")) as archive:
        assert archive.getnames() == ["study-mjp/victim/weights.safetensors"]
    assert SCRIPT.pack_weights([short], tmp_path / "out") is None


def test_nothing_runs_beside_a_cell_that_wants_the_gpu_alone() -> None:
    alone, other = make_job("alone", minutes=1, alone=True), make_job("other", minutes=1)
    busy = [SCRIPT.Running(other, None, None)]
    assert SCRIPT.choose_next([alone], busy, 600, 4) is None
    assert SCRIPT.choose_next([other], [SCRIPT.Running(alone, None, None)], 600, 4) is None
    assert SCRIPT.choose_next([alone, other], [], 90, 4) == alone


def test_a_queue_is_listed_before_it_is_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert SCRIPT.main(["--queue", str(QUEUE), "--out", "out", "--dry"]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{len(lines)} cells, ")
    with pytest.raises(SystemExit):
        SCRIPT.main(["--queue", str(QUEUE), "--out", "out", "dia:mlp-*"])
    assert "name cells, or a --queue" in capsys.readouterr().err
