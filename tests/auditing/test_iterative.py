"""Audits with attacks that iterate: stopped and taken up, told what they may know, scored."""

from __future__ import annotations

import importlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from keyhole import atomic, cli
from keyhole.attacks import Checkpointer, Matching, Reconstruction
from keyhole.auditing import AuditResult, Finding, Plan, Stage, run_plan
from keyhole.auditing.store import Store
from keyhole.progress import NullProgress
from keyhole.threat import Observation

RUN = importlib.import_module("keyhole.auditing.run")
BENCH = importlib.import_module("keyhole.auditing.store_checkpointer")

PLAN = Plan(
    stage=(
        Stage(
            data="digits", defenses=("dropout",), attacks=("ig", "dia"), victims=4, iterations=200
        ),
    )
)

OPTIONS = ("--model", "mlp", "--data", "digits", "--defense", "dropout", "--attack", "ig,dia")
SIZE = ("--victims", "4", "--iterations", "200")

SAVES_OFTEN = """
from importlib import import_module
import_module("keyhole.auditing.store_checkpointer").SECONDS_BETWEEN_SAVES = 0
import_module("keyhole.cli").main()
"""


class Killed(Exception):
    """Stands for a kill in the middle of the work."""


class KillAt(NullProgress):
    """Ends the run at an attack's n-th sign of life."""

    def __init__(self, looks: int) -> None:
        self.left = looks

    def iterate(self, done: int, total: int, text: str) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """States are saved at every look."""
    monkeypatch.setattr(BENCH, "SECONDS_BETWEEN_SAVES", 0)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    """The audit as it is when nothing interrupts it."""
    return run_plan(PLAN, out=tmp_path_factory.mktemp("whole"))


def timeless(finding: Finding) -> dict[str, Any]:
    """All of a finding but how long it took."""
    plain: dict[str, Any] = json.loads(json.dumps(finding.to_json()))
    del plain["seconds"], plain["telemetry"]["client_seconds"]
    return plain


def assert_same(one: AuditResult, other: AuditResult) -> None:
    """Bit for bit the same findings, curves, pictures and films."""
    assert [timeless(f) for f in one.findings] == [timeless(f) for f in other.findings]
    assert one.store is not None
    assert other.store is not None
    for finding in one.findings:
        assert finding.loss_curves
        mine, others = one.store.pictures(finding.key), other.store.pictures(finding.key)
        assert {"truth", "seen", "film.0", "film.3", "film.3.at"} <= set(mine)
        assert set(mine) == set(others)
        assert all(torch.equal(mine[name], others[name]) for name in mine)


def assert_tidy(run: Path) -> None:
    """Nothing that was begun is left, and no file is half written."""
    assert not list((run / "states").iterdir())
    assert not list((run / "chunks").iterdir())
    assert not list(run.rglob("*.half"))


def wait_for(process: subprocess.Popen[bytes], folder: Path, pattern: str) -> None:
    """Until a file appears; the process must not end before."""
    deadline = time.monotonic() + 300
    while not any(folder.glob(pattern)):
        assert process.poll() is None, "the audit ended before its state was saved"
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_an_audit_killed_twice_for_good_ends_like_an_uninterrupted_one(
    tmp_path: Path, whole: AuditResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, run = tmp_path / "driver.py", tmp_path / "run"
    driver.write_text(SAVES_OFTEN)
    command = ["audit", *OPTIONS, *SIZE, "--out", str(run), "--json"]
    for attack in (0, 1):
        process = subprocess.Popen(
            [sys.executable, str(driver), *command], stdout=subprocess.DEVNULL
        )
        try:
            wait_for(process, run / "states", f"*-{attack}.safetensors")
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert not list((run / "findings").glob("*.json"))
    for path in (run / "states").glob("*.safetensors"):
        assert Store.existing(run).state(path.stem).read() is not None
    monkeypatch.setattr(sys, "argv", ["keyhole", *command])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert not stopped.value.code
    assert_same(AuditResult.load(run), whole)
    assert not list((run / "states").glob("*.safetensors"))
    assert not list((run / "chunks").iterdir())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(("looks", "together"), [(1, None), (3, None), (7, 2), (12, 3)])
def test_an_attack_stopped_anywhere_goes_on_from_there(
    tmp_path: Path, whole: AuditResult, looks: int, together: int | None
) -> None:
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path, progress=KillAt(looks), victims_at_once=together)
    resumed = run_plan(PLAN, out=tmp_path, victims_at_once=together)
    if together is None:
        assert_same(resumed, whole)
    else:
        assert_alike(resumed, whole)
    assert_tidy(tmp_path)


@pytest.mark.usefixtures("often")
def test_a_continued_attack_does_not_repeat_its_iterations(tmp_path: Path) -> None:
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path, progress=KillAt(3))
    seen: list[int] = []

    class Listening(NullProgress):
        def iterate(self, done: int, total: int, text: str) -> None:
            assert total == 200
            seen.append(done)

    run_plan(PLAN, out=tmp_path, progress=Listening())
    assert seen[0] == 100
    assert seen[-1] == 200


@pytest.mark.usefixtures("often")
def test_chunks_that_are_done_and_a_chunk_that_was_begun_are_both_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: AuditResult
) -> None:
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", 2)
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path, progress=KillAt(13))
    assert list((tmp_path / "chunks").iterdir())
    assert list((tmp_path / "states").iterdir())
    assert_alike(run_plan(PLAN, out=tmp_path), whole)
    assert_tidy(tmp_path)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("folder", ["states", "pictures"])
def test_a_file_that_was_being_written_at_the_kill_does_not_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    def killed_while_writing(tensors: dict[str, Any], path: Path, header: Any = None) -> None:
        save_file(tensors, path, header)
        if path.parent.name == folder:
            raise Killed

    plan = PLAN.with_all(iterations=60, victims=1)
    with monkeypatch.context() as patched:
        patched.setattr(atomic, "save_file", killed_while_writing)
        patched.setattr(atomic.os, "getpid", lambda: 1 << 30)
        patched.setattr(Path, "unlink", lambda path, missing_ok=False: None)  # nobody tidies up
        with pytest.raises(Killed):
            run_plan(plan, out=tmp_path)
    assert list(tmp_path.rglob("*.half"))
    run_plan(plan, out=tmp_path)
    assert_tidy(tmp_path)


def assert_alike(one: AuditResult, other: AuditResult) -> None:
    """The same but for how floating-point sums are ordered."""
    for mine, others in zip(one.findings, other.findings, strict=True):
        assert mine.key == others.key
        for name, summary in mine.metrics.items():
            expected = others.metrics[name].per_image
            if name == "psnr":
                assert summary.per_image == pytest.approx(expected, abs=1.0)
            else:
                assert summary.per_image == pytest.approx(expected, abs=2e-2)


def test_how_many_victims_share_the_device_does_not_change_what_is_found() -> None:
    plan = PLAN.with_all(victims=3, iterations=100)
    whole = run_plan(plan)
    for together in (1, 2, 7):
        assert_alike(run_plan(plan, victims_at_once=together), whole)


@pytest.fixture(scope="module")
def both() -> AuditResult:
    """Three attacks with and without dropout."""
    stage = Stage(
        data="digits",
        defenses=("none", "dropout"),
        attacks=("ig", "wiig", "dia"),
        victims=2,
        iterations=60,
    )
    return run_plan(Plan(stage=(stage,)))


def of(result: AuditResult, defense: str, attack: str) -> Finding:
    (found,) = [f for f in result.findings if (f.defense["name"], f.attack) == (defense, attack)]
    return found


def test_only_the_well_informed_attacker_is_given_masks(both: AuditResult) -> None:
    told = {(f.defense["name"], f.attack): f.knowledge["masks"] for f in both.findings}
    assert told == {
        ("none", "ig"): False,
        ("none", "dia"): False,
        ("dropout", "ig"): False,
        ("dropout", "wiig"): True,
        ("dropout", "dia"): False,
    }
    assert all(f.knowledge["labels"] for f in both.findings)


def test_observations_hold_masks_for_the_well_informed_attacker_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handed: dict[str, list[Observation]] = {}

    def spy(
        self: Matching, observations: Sequence[Observation], checkpointer: Checkpointer
    ) -> Iterator[Reconstruction]:
        handed[self.name] = list(observations)
        return iter([Reconstruction()] * len(observations))

    monkeypatch.setattr(Matching, "stream", spy)
    run_plan(PLAN.with_all(attacks=("ig", "wiig", "dia"), victims=3))
    assert {name: {o.knowledge.masks is None for o in seen} for name, seen in handed.items()} == {
        "ig": {True},
        "wiig": {False},
        "dia": {True},
    }
    assert [o.client for o in handed["ig"]] == [0, 1, 2]
    drawn = [o.knowledge.masks for o in handed["wiig"]]
    assert drawn[0] is not None
    assert drawn[1] is not None
    assert all(mask.dtype == torch.bool for mask in drawn[0])
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert handed["wiig"][0].knowledge.defense is not None


def test_without_dropout_there_are_no_masks_to_be_told(both: AuditResult) -> None:
    (skipped,) = both.skipped
    assert skipped.attack.startswith("wiig")
    assert (skipped.model, skipped.defense) == ("mlp", "none")
    assert "no masks to be given" in skipped.why


def test_without_dropout_the_attack_that_seeks_masks_sees_what_ig_sees(both: AuditResult) -> None:
    ig, dia = of(both, "none", "ig"), of(both, "none", "dia")
    assert ig.metrics == dia.metrics
    assert ig.loss_curves == dia.loss_curves


def test_masks_are_scored_where_they_were_sought(both: AuditResult) -> None:
    scored = {(f.defense["name"], f.attack): "mask" in f.metrics for f in both.findings}
    assert [name for name, has in scored.items() if has] == [("dropout", "dia")]
    assert all(("mmd" in f.metrics) == ("mask" in f.metrics) for f in both.findings)
    assert len(of(both, "dropout", "dia").metrics["mmd"].per_image) == 2


def test_the_masks_sought_on_an_mlp_are_found() -> None:
    plan = PLAN.with_all(attacks=("dia",), victims=1, iterations=400)
    (finding,) = run_plan(plan).findings
    assert finding.metrics["mask"].mean < 0.01
    assert finding.metrics["read"].mean == 1.0


def test_findings_tell_how_the_loss_fell_and_films_how_the_image_appeared(
    whole: AuditResult,
) -> None:
    assert whole.store is not None
    for finding in whole.findings:
        assert len(finding.loss_curves) == 4
        for curve in finding.loss_curves:
            assert [i for i, _ in curve] == list(range(50, 201, 50))
            assert curve[-1][1] < curve[0][1]
        pictures = whole.store.pictures(finding.key)
        assert pictures["film.2"].shape == (4, 1, 8, 8)
        assert pictures["film.2.at"].tolist() == [0, 50, 100, 200]
        assert pictures["film.2"].dtype == torch.uint8


def test_a_finding_is_read_back_as_it_was_written(whole: AuditResult) -> None:
    assert whole.store is not None
    for finding in whole.findings:
        assert whole.store.finding(finding.key) == finding


def test_the_settings_of_the_papers_are_in_the_finding() -> None:
    plan = PLAN.with_all(attacks=("ig", "linear"), victims=1, iterations=3)
    usual, published = (run_plan(p).findings for p in (plan, plan.with_all(parity="paper")))
    assert (usual[0].attack_parameters["patience"], usual[0].recipe["parity"]) == (100, None)
    ours = {**published[0].attack_parameters}
    assert (ours["patience"], ours["drops"], ours["give_up"]) == (800, None, 4000)
    assert ours["iterations"] == 3
    assert published[0].recipe["parity"] == "paper"
    assert published[0].key != usual[0].key
    assert published[1].attack_parameters == usual[1].attack_parameters
