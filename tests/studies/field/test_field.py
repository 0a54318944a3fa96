"""The field study: its grid, a few cells at the smallest scale, its table, figure and page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from keyhole.defenses import DEFENSES
from keyhole.progress import NullProgress
from keyhole_studies import load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.field.experiments import FieldAccuracy, FieldAudit
from keyhole_studies.field.grid import read_field
from keyhole_studies.field.page import write_page
from keyhole_studies.field.points import Gap, Reading, collect_points, read_rows
from keyhole_studies.field.tables import LEGEND, format_tables, make_rows
from keyhole_studies.result_files import read_results, write_result
from keyhole_studies.show import format_study, make_result_rows
from keyhole_studies.summary import read_cells
from scripts import ROOT

SHARED = Path(os.environ.get("KEYHOLE_DATA") or ROOT.parent / "shared" / "data")
CELLS = [
    "none-off-quickstart-honest",
    "none-off-quickstart-malicious",
    "pruning-strong-quickstart-honest",
    "pruning-strong-quickstart-accuracy",
    "mjp-weak-quickstart-honest",
]
JOINED = ["dropout-topk"]


def test_every_defense_is_in_it_at_up_to_three_strengths() -> None:
    study = load_study("field")
    audits = [each for each in study.experiments if isinstance(each, FieldAudit)]
    trainings = [each for each in study.experiments if isinstance(each, FieldAccuracy)]
    assert set(study.labels["defense"]) == {*DEFENSES.names(), *JOINED}
    assert len(audits) == 2 * len(trainings)
    assert {each.server for each in audits} == {"honest", "malicious"}
    assert {each.network for each in audits} == {"quickstart", "resnet18", "vit-small"}
    assert len({each.name for each in study.experiments}) == len(study.experiments)
    for each in audits:
        (text,) = each.stage.defenses
        parts = [part.name for part in DEFENSES.parse(text).each_part()]
        assert "-".join(parts) == each.family


def test_published_attacks_come_to_the_networks_own() -> None:
    study = load_study("field")
    dp = study.find("dp-weak-vit-small-honest")
    assert isinstance(dp, FieldAudit)
    assert dp.stage.attacks == ("ig", "patch-lstsq", "ig-uploaded")
    dpsgd = study.find("dpsgd-weak-resnet18-honest")
    assert isinstance(dpsgd, FieldAudit)
    assert (dpsgd.stage.model, len(dpsgd.stage.attacks)) == ("dp:resnet18", 1)


def test_published_attacks_of_a_lying_server_are_left_to_it() -> None:
    study = load_study("field")
    honest, malicious = (study.find(f"oasis-weak-quickstart-{s}") for s in ("honest", "malicious"))
    assert isinstance(honest, FieldAudit)
    assert isinstance(malicious, FieldAudit)
    assert honest.stage.attacks == ("ig(tv=3e-2)",)
    assert malicious.stage.attacks == ("imprint", "imprint-weights", "trap-weights")


def test_one_server_whose_attack_does_not_apply_leaves_the_other_s_row() -> None:
    study = load_study("field")
    metrics = {"read": {"mean": 0.0}, "psnr": {"mean": 10.0}}
    rows = {"ig": {"attacker": "naive", "metrics": metrics, "parameters": {}}}
    about = {"stage": {"batch_size": 1, "victims": 4}, "device": "cpu", "versions": {"torch": "2"}}
    results = {
        "share-strong-quickstart-honest": {"rows": rows, "acted": {"status": "acted"}, **about},
        "share-strong-quickstart-malicious": {"does_not_fit": "attack 'imprint' does not apply"},
        "mjp-weak-vit-small-malicious": {
            "rows": rows,
            "acted": None,
            "skipped": {"april": "it needs one image"},
            **about,
        },
    }
    page = "\n".join(write_page(study, results))
    row = "| quickstart CNN | `share` | not run | 10.0, 0% | no attacker | no attacker"
    assert f"{row} | does not fit | no attacker | no attacker |" in page
    assert "- `share` on `quickstart`, malicious server: attack 'imprint' does not apply" in page
    assert "does not fit `quickstart`" not in page
    assert "- `april` does not apply to `vit-small` under `mjp`, malicious server: it needs" in page


def test_a_cell_without_a_figure_says_why() -> None:
    """Not run, no such attacker, and what does not fit are three things."""
    study = load_study("field")
    metrics = {"read": {"mean": 0.0}, "psnr": {"mean": 10.0}}
    audit = {"acted": None, "stage": {"batch_size": 1, "victims": 4}, "device": "cpu"}
    naive = {"attacker": "naive", "metrics": metrics, "parameters": {}}
    results = {
        "topk-weak-quickstart-honest": {"rows": {"ig": naive}, **audit},
        "soteria-weak-quickstart-accuracy": {"accuracy": 0.5},
        "dropout-weak-quickstart-accuracy": {"does_not_fit": "it has no dropout layers"},
        "dropout-weak-quickstart-malicious": {"rows": {"imprint": naive}, **audit},
        "pruning-weak-quickstart-honest": {"rows": {"gifd": naive}, **audit},
    }
    points = {point.family: point for point in collect_points(study, results)}
    assert points["topk"].find_gap("honest", "adaptive") is Gap.NOT_RUN  # of an earlier version
    assert points["topk"].find_gap("honest", "paper") is Gap.NO_ATTACKER
    assert points["topk"].find_gap("malicious", "naive") is Gap.NOT_RUN
    assert points["soteria"].find_gap("honest", "naive") is Gap.NO_ATTACKER
    assert points["soteria"].find_gap("honest", "adaptive") is Gap.NOT_RUN
    assert points["pruning"].find_gap("honest", "adaptive") is Gap.NO_FIT
    rows = {row[1]: row[2:] for row in make_rows(study, list(points.values()))}
    assert rows["soteria(ratio=0.4)"][0] == "50.0%"
    assert rows["topk(k=0.1)"][:3] == ["not run", "10.0, 0%", "no attacker"]
    assert rows["dropout(p=0.1)"][0] == "does not fit"
    assert "–" not in "".join(cell for row in rows.values() for cell in row)
    page = "\n".join(format_tables(study, ROOT / "results" / "field"))
    assert all(f"  {gap}: {words}" in page for gap, words in LEGEND.items())


def test_a_result_without_an_attacker_of_today_is_measured_again(tmp_path: Path) -> None:
    cell = load_study("field").find("pruning-medium-quickstart-honest")
    assert isinstance(cell, FieldAudit)
    context = StudyContext(
        runs=tmp_path, data_dir=None, device="cpu", progress=NullProgress(), changes={"victims": 4}
    )

    def row(attacker: str) -> dict[str, object]:
        return {"attacker": attacker, "parameters": {"iterations": 800, "tv": 0.03}}

    rows = {"ig": row("naive"), "dlg": {**row("paper"), "parameters": {}}}
    old = {"images": 4, "rows": rows}
    assert cell.find_missing(old) == [("ig", "adaptive"), ("dlg", "adaptive")]
    assert not cell.covers(old, context)
    known = {f"{name} (adaptive)": row("adaptive") for name in ("ig", "dlg")}
    assert cell.covers({"images": 4, "rows": rows | known}, context)
    assert not cell.covers({"images": 3, "rows": rows | known}, context)
    assert cell.covers({"does_not_fit": "it has no layers"}, context)
    assert cell.find_gap({"images": 4, "rows": rows}, context) == (
        "part (without ig (adaptive), dlg (adaptive))"
    )


def test_an_attack_that_does_not_apply_is_not_measured_again(tmp_path: Path) -> None:
    cell = load_study("field").find("oasis-weak-quickstart-malicious")
    assert isinstance(cell, FieldAudit)
    context = StudyContext(tmp_path, None, "cpu", NullProgress())
    row = {"attacker": "paper", "parameters": {}}
    old: dict[str, Any] = {"images": 32, "rows": {"imprint": row}}
    assert cell.find_gap(old, context) == "part (without imprint-weights)"
    why = {"imprint-weights": "it has one image per client", "trap-weights": "no linear layer"}
    assert cell.covers({**old, "skipped": why}, context)


def test_cells_that_do_not_fit_are_whole_and_say_so(tmp_path: Path) -> None:
    study = load_study("field")
    unfit = {"piece": "", "does_not_fit": "it has no dropout layers"}
    names = [f"dropout-weak-quickstart-{kind}" for kind in ("honest", "accuracy")]
    for name in names:
        write_result(tmp_path, name, unfit)
    found = {cell.experiment.name: cell for cell in read_cells(study, tmp_path) if cell.ran}
    said = {name: (cell.gap, cell.found) for name, cell in found.items()}
    assert said == dict.fromkeys(names, ("", "does not fit"))
    assert any(names[1] in line for line in format_study(study, tmp_path))


def test_every_result_that_ships_has_the_attackers_of_today() -> None:
    study = load_study("field")
    audits = {each.name: each for each in study.experiments if isinstance(each, FieldAudit)}
    results = read_results(ROOT / "results" / "field", audits)
    missing = {
        name: found
        for name, result in results.items()
        if "does_not_fit" not in result and (found := audits[name].find_missing(result))
    }
    assert len(results) > 100
    assert missing == {}


def test_audits_and_trainings_have_one_learning_rate() -> None:
    for scale in ("full", "quick"):
        rates = {
            each.stage.lr if isinstance(each, FieldAudit) else each.settings.lr  # type: ignore[attr-defined]
            for each in read_field(scale).experiments
        }
        assert len(rates) == 1


def test_the_best_attack_of_each_kind_counts() -> None:
    def row(attacker: str, read: float, psnr: float) -> dict[str, object]:
        metrics = {"read": {"mean": read}, "psnr": {"mean": psnr}}
        return {"attacker": attacker, "metrics": metrics}

    rows = {
        "ig": row("naive", 0.0, 20.0),
        "linear": row("naive", 0.5, 10.0),
        "ig (adaptive)": row("adaptive", 1.0, 30.0),
        "labels": {"attacker": "naive", "metrics": {}},
    }
    assert read_rows("honest", {"rows": rows}) == {
        ("honest", "naive"): Reading(0.5, 10.0, "linear"),
        ("honest", "adaptive"): Reading(1.0, 30.0, "ig"),
    }


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="CIFAR-10 is not here")
def test_cells_run_and_make_a_table_a_figure_and_a_page(tmp_path: Path) -> None:
    study = read_field("quick")
    context = StudyContext(
        runs=tmp_path / "runs", data_dir=str(SHARED), device="cpu", progress=NullProgress()
    )
    chosen = study.choose(CELLS)
    ran = list(study.run(chosen, context, results=tmp_path / "results"))
    assert [each.name for each in ran] == CELLS
    assert not list(study.run(chosen, context, results=tmp_path / "results"))
    results = read_results(tmp_path / "results", CELLS)
    none, pruned, unfit = collect_points(study, results)
    assert set(none.readings) == {("honest", "naive"), ("malicious", "naive")}
    assert none.readings["malicious", "naive"].read == 1.0
    assert (none.acted, pruned.acted) == ("", "acted")
    assert pruned.accuracy is not None
    assert "does not say which images it takes" in unfit.unfit["honest"]
    shown = "\n".join(format_study(study, tmp_path / "results"))
    assert "pruning(ratio=0.99)" in shown
    rows = make_result_rows(study, tmp_path / "results")
    done = {row["piece"] for row in rows if row["ours"] is not None}
    assert done == set(CELLS) - {"mjp-weak-quickstart-honest"}
    assert study.draw_figures is not None
    (figure,) = study.draw_figures(study, tmp_path / "results", tmp_path)
    assert figure.stat().st_size > 1000
    page = "\n".join(write_page(study, results))
    assert "| quickstart CNN | `none` |" in page
    assert "- `mjp` does not fit `quickstart`: it does not say" in page
    assert "1 clients of 2 images" in page


def test_the_page_is_what_the_results_say() -> None:
    study = load_study("field")
    results = read_results(ROOT / "results" / "field", [e.name for e in study.experiments])
    written = (ROOT / "docs" / "field.md").read_text(encoding="utf-8")
    assert written == "\n".join(write_page(study, results)) + "\n"
