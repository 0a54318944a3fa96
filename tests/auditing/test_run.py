import importlib
import json

import pytest
import torch

import keyhole
from keyhole.auditing import Plan, Stage, run_plan
from keyhole.auditing.results import AuditResult
from keyhole.errors import KeyholeError, RunFolderError

RUN = importlib.import_module("keyhole.auditing.run")

PLAN = Plan(
    stage=(
        Stage(
            data="digits", defenses=("none", "gaussian(sigma=0.01)"), attacks=("linear",), victims=5
        ),
    )
)


class Killed(Exception):
    """Stands for a kill in the middle of the work."""


class KillAfter:
    """A progress display that ends the process after some units."""

    def __init__(self, units):
        self.left = units

    def begin(self, total):
        self.total = total

    def show(self, what):
        pass

    def advance(self, units):
        self.left -= units
        if self.left < 0:
            raise Killed


def without_times(result):
    found = json.loads(json.dumps(result.to_json()["findings"]))
    for finding in found:
        del finding["seconds"], finding["telemetry"]["client_seconds"]
    return found


@pytest.fixture
def chunks_of_two(monkeypatch):
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", 2)


def test_a_finding_says_everything(tmp_path):
    result = run_plan(PLAN, out=tmp_path / "run")
    finding = result.to_json()["findings"][0]
    wanted = {"model", "data", "defense", "attacker", "attack", "knowledge", "victims", "seconds"}
    assert wanted <= set(finding)
    for values in finding["metrics"].values():
        assert set(values) == {"mean", "low", "high", "worst", "per_image"}
        assert values["low"] <= values["mean"] <= values["high"]
        assert len(values["per_image"]) == 5
    assert finding["recipe"]["seed"] == 0
    assert finding["versions"]["torch"] == torch.__version__.split("+")[0]
    assert {"torch", "keyhole", "python"} <= set(finding["versions"])


def test_the_same_plan_gives_the_same_findings():
    assert without_times(run_plan(PLAN)) == without_times(run_plan(PLAN))


@pytest.mark.usefixtures("chunks_of_two")
@pytest.mark.parametrize("units", [3, 11, 14, 17])
def test_a_killed_run_is_continued_and_ends_like_an_uninterrupted_one(tmp_path, units):
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path / "run", progress=KillAfter(units))
    resumed = run_plan(PLAN, out=tmp_path / "run")
    assert without_times(resumed) == without_times(run_plan(PLAN))
    assert not list((tmp_path / "run" / "chunks").iterdir())


@pytest.mark.usefixtures("chunks_of_two")
def test_a_continued_run_does_not_repeat_what_is_done(tmp_path, monkeypatch):
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path, progress=KillAfter(17))
    trained = []
    real = RUN.observe_client
    monkeypatch.setattr(
        RUN, "observe_client", lambda s, v: trained.append((str(s.defense), v)) or real(s, v)
    )
    run_plan(PLAN, out=tmp_path)
    assert all(defense.startswith("gaussian") for defense, _ in trained)
    assert [victim for _, victim in trained] == [2, 3, 4]


@pytest.mark.parametrize("size", [1, 3, 32])
def test_a_run_continued_with_chunks_of_another_size_loses_no_victim(tmp_path, monkeypatch, size):
    """As on another device, or with another amount of memory."""
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", 2)
    with pytest.raises(Killed):
        run_plan(PLAN, out=tmp_path, progress=KillAfter(17))
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", size)
    assert without_times(run_plan(PLAN, out=tmp_path)) == without_times(run_plan(PLAN))


def test_chunks_do_not_change_the_result(monkeypatch):
    whole = without_times(run_plan(PLAN))
    monkeypatch.setattr(RUN, "VICTIMS_AT_ONCE", 2)
    assert without_times(run_plan(PLAN)) == whole


def test_another_plan_does_not_overwrite_a_run(tmp_path):
    run_plan(PLAN, out=tmp_path)
    other = PLAN.with_all(victims=1)
    with pytest.raises(RunFolderError, match="another audit"):
        run_plan(other, out=tmp_path)
    assert len(run_plan(other, out=tmp_path, fresh=True).findings[0].confidence) == 1


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_with_other_files_is_left_alone(tmp_path, fresh):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunFolderError, match="holds other files"):
        run_plan(PLAN, out=tmp_path, fresh=fresh)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_an_audit_that_cannot_start_leaves_no_folder(tmp_path):
    stage = Stage(model="resnet18", data="digits", attacks=("labels",), client_mode="train")
    plan = Plan(stage=(stage,))
    with pytest.raises(KeyholeError, match="cannot train"):
        run_plan(plan, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_earlier_audit_can_be_read_back(tmp_path):
    result = run_plan(PLAN, out=tmp_path)
    again = AuditResult.load(tmp_path)
    assert json.dumps(again.to_json()) == json.dumps(result.to_json())


def test_pictures_are_kept_as_they_were_seen(tmp_path):
    result = run_plan(PLAN, out=tmp_path)
    pictures = result.store.pictures(result.findings[0].key)
    assert pictures["truth"].shape == pictures["seen"].shape == (5, 1, 8, 8)
    assert torch.equal(pictures["truth"], pictures["seen"])


def test_own_objects_take_the_place_of_names():
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    model.train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    result = keyhole.audit(
        model=model,
        data=keyhole.data.load("digits"),
        defenses=[keyhole.defenses.NoDefense(), keyhole.defenses.Gaussian(sigma=1.0)],
        attacks=[keyhole.attacks.LinearLeak()],
        victims=2,
    )
    assert [v.status for v in result.verdicts] == ["broken", "not broken"]
    assert model.training
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_noise_of_growing_strength_hides_more():
    sigmas = (0.0, 1e-4, 1e-3, 1e-2, 1e-1)
    result = keyhole.audit(
        model="mlp",
        data="faces",
        defenses=[f"gaussian(sigma={s})" for s in sigmas],
        attacks=["linear"],
        victims=6,
    )
    for attacker in ("naive", "adaptive"):
        psnr = [f.metrics["psnr"].mean for f in result.findings if f.attacker == attacker]
        assert len(psnr) == len(sigmas)
        assert psnr == sorted(psnr, reverse=True)
