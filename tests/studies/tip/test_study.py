"""The TIP study as a whole: its experiments, its tables, and privacy beside accuracy."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from keyhole.attacks import ATTACKS
from keyhole.defenses import DEFENSES
from keyhole.progress import NullProgress
from keyhole_studies import load_study
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import StudyContext
from keyhole_studies.tip.averaging import FedAvgSettings, run_rounds
from keyhole_studies.tip.curves import CurveExperiment
from keyhole_studies.tip.front import UtilityExperiment, draw_front, read_points
from keyhole_studies.tip.inversion import InversionExperiment
from keyhole_studies.tip.tables import format_tables

STUDY = load_study("tip")
DATA = ("cifar10", "cifar100", "tiny-imagenet")
DEFENSE_NAMES = ("none", "dp", "agp", "tip")
INVERSIONS = [e for e in STUDY.experiments if isinstance(e, InversionExperiment)]
RESULTS = Path(__file__).parents[3] / "results" / "tip"

Command = Callable[..., tuple[int, str, str]]


def test_every_cell_of_table_1_has_its_experiment() -> None:
    names = [experiment.name for experiment in STUDY.experiments]
    assert len(names) == len(set(names))
    table = {e.name for e in INVERSIONS if e.group == "table-1"}
    assert table == {f"invert-{data}-{defense}" for data in DATA for defense in DEFENSE_NAMES}
    for name in table:
        experiment = STUDY.find(name)
        assert isinstance(experiment, InversionExperiment)
        assert experiment.stage.victims == 32
        assert experiment.setting == name.rpartition("-")[2] == experiment.family
        named = {ATTACKS.parse(attack).name for attack in experiment.stage.attacks}
        assert set(experiment.paper) == named == {"ig", "gifd"}
        assert all(set(figures) == {"psnr", "ssim"} for figures in experiment.paper.values())
    for experiment in STUDY.experiments:
        assert experiment.describe()
        for name in getattr(getattr(experiment, "stage", None), "defenses", ()):
            assert DEFENSES.parse(name)
        for name in getattr(getattr(experiment, "stage", None), "attacks", ()):
            assert ATTACKS.parse(name)


def test_accuracy_is_measured_under_the_setting_that_is_attacked() -> None:
    for experiment in INVERSIONS:
        if experiment.utility:
            utility = STUDY.find(experiment.utility)
            assert isinstance(utility, UtilityExperiment)
            assert (utility.defense,) == experiment.stage.defenses
            assert utility.settings.model == experiment.stage.model
    known = {e.utility for e in INVERSIONS if e.utility}
    assert known == {e.name for e in STUDY.experiments if isinstance(e, UtilityExperiment)}


def test_the_papers_order_holds_for_attackers_who_do_not_know_the_defense() -> None:
    """Far below no defense, and within 2 dB of one another, where there are images enough."""
    for data in ("cifar10", "cifar100"):
        for attack in ("ig", "gifd"):
            none, *defended = (
                read_psnr(f"invert-{data}-{defense}", attack) for defense in DEFENSE_NAMES
            )
            assert none > max(defended) + 10
            assert max(defended) - min(defended) < 2
    for attack in ("ig (adaptive)", "gifd (adaptive)"):
        assert read_psnr("invert-cifar10-tip", attack) > read_psnr("invert-cifar10-dp", attack) + 10


def read_psnr(name: str, row: str) -> float:
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return float(found["rows"][row]["metrics"]["psnr"]["mean"])


def row(psnr: float, attacker: str) -> dict[str, Any]:
    metrics = {"psnr": {"mean": psnr}, "ssim": {"mean": psnr / 40}}
    return {"attacker": attacker, "metrics": metrics}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Two settings inverted, one of them trained as well."""
    for short, naive, adaptive in (("none", 26.0, None), ("tip", 10.0, 25.5)):
        rows = {"ig": row(naive, "naive")}
        if adaptive is not None:
            rows["ig (adaptive)"] = row(adaptive, "adaptive")
            rows["gifd"] = row(30.0, "naive")
        found = {"piece": f"invert-cifar10-{short}", "images": 32, "rows": rows}
        (tmp_path / f"invert-cifar10-{short}.json").write_text(json.dumps(found))
    trained = {"piece": "utility-cifar10-tip", "accuracy": 0.6}
    (tmp_path / "utility-cifar10-tip.json").write_text(json.dumps(trained))
    return tmp_path


def test_the_tables_show_who_knows_beside_who_does_not(results: Path) -> None:
    lines = list(format_tables(STUDY, results))
    naive = next(line for line in lines if line.strip().startswith("ig (naive), PSNR"))
    assert naive.split()[3:5] == ["26.0", "(14.58)"]
    assert naive.split()[-2:] == ["10.0", "(9.85)"]
    adaptive = next(line for line in lines if line.strip().startswith("ig (adaptive), PSNR"))
    assert adaptive.split()[3:] == ["-", "-", "-", "25.5"]


def test_a_setting_is_worth_what_the_better_of_igs_attackers_leaves(
    results: Path, tmp_path: Path
) -> None:
    """GIFD, which did not meet every setting, does not count."""
    ((point,),) = read_points(STUDY, results).values()
    assert (point.experiment.setting, point.psnr, point.accuracy) == ("tip", 25.5, 0.6)
    (picture,) = draw_front(STUDY, results, tmp_path / "out")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_nothing_is_drawn_of_nothing(tmp_path: Path) -> None:
    assert draw_front(STUDY, tmp_path, tmp_path / "out") == []


def test_a_setting_is_trained(tmp_path: Path) -> None:
    small = FedAvgSettings(
        name="small", rounds=2, lr=0.05, clients=3, sampled=2, epochs=1, model="lenet", every=2
    )
    experiment = UtilityExperiment("utility-digits-tip", "tip(epsilon=1.0)", small, "digits")
    found = experiment.measure(STUDY, StudyContext(tmp_path, None, "cpu", NullProgress()))
    *_, last = run_rounds("tip(epsilon=1.0)", small, data="digits", seed=STUDY.seed)
    assert found["accuracy"] == last["accuracy"]
    assert found["recipe"]["rounds"] == 2


def test_a_setting_that_is_trained_for_fewer_rounds_is_done_in_part(tmp_path: Path) -> None:
    small = FedAvgSettings(
        name="small", rounds=3, lr=0.05, clients=3, sampled=2, epochs=1, model="lenet", every=2
    )
    experiment = UtilityExperiment("utility-digits-none", "none", small, "digits")
    whole = StudyContext(tmp_path, None, "cpu", NullProgress())
    fewer = dataclasses.replace(whole, changes={"iterations": 1})
    found = experiment.measure(STUDY, fewer)
    assert found["recipe"]["rounds"] == 1
    assert experiment.covers(found, fewer)
    assert experiment.find_gap(found, whole) == "part (1 of 3 rounds)"
    more = dataclasses.replace(whole, changes={"iterations": 100})
    assert experiment.find_gap(found, more) == "part (1 of 3 rounds)"


def test_committed_results_belong_to_experiments(keyhole: Command) -> None:
    names = {experiment.name for experiment in STUDY.experiments}
    files = sorted(RESULTS.glob("*.json"))
    for path in files:
        assert path.stem in names
        assert json.loads(path.read_text())["piece"] == path.stem
    if files:
        code, out, _ = keyhole("study", "tip", "--show", "--results", str(RESULTS))
        assert code == 0
        assert "Table" in out


def test_accuracy_after_another_training_does_not_count(tmp_path: Path) -> None:
    experiment = STUDY.find("utility-small-cifar10-none")
    context = StudyContext(tmp_path, None, "cpu", NullProgress())
    known = json.loads((RESULTS / f"{experiment.name}.json").read_text(encoding="utf-8"))
    assert experiment.covers(known, context)
    assert not experiment.covers({**known, "recipe": {**known["recipe"], "lr": 0.05}}, context)


def test_every_setting_has_a_name_beside_its_mark() -> None:
    marked = [e for e in INVERSIONS if e.utility]
    assert {e.setting for e in marked if not e.label} == {"none"}
    assert {e.family for e in marked} == set(STUDY.labels["defense"])
    assert {e.stage.model for e in marked} == set(STUDY.labels["network"])
    for model in STUDY.labels["network"]:
        names = [(e.family, e.label) for e in marked if e.stage.model == model]
        assert len(names) == len(set(names))


def test_curves_are_compared_at_the_last_round_they_share(tmp_path: Path) -> None:
    for short, rounds in (("none", (5, 10, 15)), ("dp", (5, 10))):
        curve = STUDY.find(f"curve-cifar10-iid-{short}-practical")
        assert isinstance(curve, CurveExperiment)
        found = [{"round": number, "accuracy": number / 100} for number in rounds]
        result = curve.make_result(found, 0, torch.device("cpu"))
        (tmp_path / f"{curve.name}.json").write_text(json.dumps(result))
    text = "\n".join(format_tables(STUDY, tmp_path))
    assert text.count("10.0") == 2
    assert "15.0" not in text


def test_what_was_measured_is_what_the_experiments_ask_for() -> None:
    """The same attacks on the same defense; at most as many images and iterations."""
    known = {experiment.name: experiment for experiment in STUDY.experiments}
    for file in sorted(RESULTS.glob("*.json")):
        found, experiment = json.loads(file.read_text(encoding="utf-8")), known[file.stem]
        if not isinstance(experiment, AuditExperiment):
            assert found.get("defense", "") == getattr(experiment, "defense", ""), file.stem
            continue
        asked = {attack.name: attack for attack in map(ATTACKS.parse, experiment.stage.attacks)}
        assert {name.partition(" (")[0] for name in found["rows"]} == set(asked), file.stem
        assert 0 < found["images"] <= experiment.stage.victims
        for name, row in found["rows"].items():
            most = asked[name.partition(" (")[0]].iterations  # type: ignore[attr-defined]
            assert 0 < row["parameters"]["iterations"] <= most, file.stem
