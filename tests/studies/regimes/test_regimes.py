"""The study of regimes: its grid, a few cells at the smallest scale, its tables, maps and page."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from keyhole.progress import NullProgress
from keyhole_studies import load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.regimes.experiments import UNFIT, RegimeExperiment
from keyhole_studies.regimes.grid import read_grid, read_regimes
from keyhole_studies.regimes.page import write_page
from keyhole_studies.regimes.points import Point, collect_points, make_point
from keyhole_studies.regimes.tables import format_point
from keyhole_studies.result_files import read_results
from keyhole_studies.show import make_result_rows
from scripts import ROOT

SHARED = Path(os.environ.get("KEYHOLE_DATA") or ROOT.parent / "shared" / "data")
CELLS = [
    "quickstart-fresh-b4-step-malicious",
    "quickstart-70-b4-epoch-honest",
    "deit-small-fresh-b1-step-honest",
]


ROWS: dict[str, dict[str, int]] = {
    "ig": {"iterations": 300},
    "cocktail-party": {"iterations": 1000},
    "linear": {},
}
"""What each attack of a result was allowed; the option limits gradient matching alone."""


SKIPPED = [
    *("spear-ig(iterations=300): no ReLU", "decode: no layer"),
    *("sme: one step", "epoch-matching: one step"),
]
"""The other attacks of the cell, and why they did not run."""


def context_of(folder: Path, **changes: int) -> StudyContext:
    progress = NullProgress()
    return StudyContext(folder, str(SHARED), "cpu", progress, changes=changes)


def test_every_combination_is_a_cell_of_its_own() -> None:
    study, grid = load_study("regimes"), read_grid()
    assert len({each.name for each in study.experiments}) == len(study.experiments)
    assert len(study.experiments) == 7 * 3 * 4 * 3 * 2
    assert grid.batches == (1, 4, 8, 32)
    assert {"quickstart-70-b8-epoch-honest", "resnet18-gn-fresh-b1-step-malicious"} <= {
        each.name for each in study.experiments
    }
    epoch = study.find("mlp-90-b8-epoch-honest")
    assert isinstance(epoch, RegimeExperiment)
    assert epoch.images == 32
    assert "sme" in epoch.attacks
    trained_on = grid.scales["full"].trained_on
    assert trained_on >= max(each.images for each in study.experiments) * 16  # type: ignore[attr-defined]


def test_a_result_counts_for_as_many_clients_and_iterations() -> None:
    cell = read_regimes().find(CELLS[1])
    rows = {name: {"parameters": found} for name, found in ROWS.items()}
    known = {"victims": 4, "rows": rows, "skipped": SKIPPED}
    assert not cell.covers(known, context_of(Path("runs")))
    assert cell.covers(known, context_of(Path("runs"), iterations=300))
    assert not cell.covers(known, context_of(Path("runs"), iterations=300, victims=8))
    closed = {"linear": {"parameters": {}}}
    skipped = [*SKIPPED, "ig(tv=0.03): it needs more"]
    assert cell.covers({"victims": 4, "rows": closed, "skipped": skipped}, context_of(Path()))
    assert not cell.covers({"victims": 4, "rows": closed, "skipped": SKIPPED}, context_of(Path()))
    assert cell.covers({UNFIT: "no weights"}, context_of(Path("runs")))


def test_a_result_gains_the_attacks_that_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = read_regimes()
    cell, context = (
        study.find("quickstart-fresh-b4-step-honest"),
        context_of(Path(), iterations=300),
    )
    ran, rate = list[tuple[str, ...]](), [0.01]

    def measure(
        self: RegimeExperiment, attacks: tuple[str, ...], *_: object, whole: bool = True
    ) -> dict[str, object]:
        ran.append(attacks)
        rows = {text.partition("(")[0]: {"parameters": {}} for text in attacks}
        return {"rows": rows, "skipped": [], "seconds": 2.0, "lr": rate[0], "victims": 4}

    monkeypatch.setattr(RegimeExperiment, "measure_attacks", measure)
    known = {
        "victims": 4,
        "lr": 0.01,
        "seconds": 5.0,
        "membership": {"members": 9},
        "rows": {"ig": {"parameters": {"iterations": 300}}},
        "skipped": SKIPPED[:1],
    }
    assert not cell.covers(known, context)
    found = cell.complete(known, study, context)
    assert ran == [("decode",)]
    assert list(found["rows"]) == ["ig", "decode"]
    assert (found["seconds"], found["membership"]) == (7.0, {"members": 9})
    assert cell.covers(found, context)
    rate[0] = 0.1  # clients train otherwise now
    assert "membership" not in cell.complete(known, study, context)
    assert len(ran[-1]) == 3


def test_the_attack_that_read_most_counts_then_the_clearest() -> None:
    def row(read: list[float], psnr: float) -> dict[str, object]:
        mean = sum(read) / len(read)
        metrics = {"read": {"mean": mean, "per_image": read}, "psnr": {"mean": psnr}}
        return {"metrics": metrics, "parameters": {}}

    rows = {"ig": row([1, 0], 12.0), "linear": row([1, 0], 90.0), "sme": row([0, 0], 99.0)}
    labels = {"labels": {"metrics": {}, "parameters": {}}}
    areas = {"loss": {"auc": 0.6}, "fedmia": {"auc": 0.7}}
    key = ("mlp", "70", 1, "step", "honest")
    found = make_point(
        key,
        {"images": 2, "rows": rows | labels, "membership": {"members": 9, "attacks": areas}},
    )
    assert (found.attack, found.read, found.share, found.psnr) == ("linear", 1, 0.5, 90.0)
    assert (found.member_attack, found.auc) == ("fedmia", 0.7)
    assert format_point(Point(key, unfit="too few")) == "unfit"


@pytest.mark.skipif(not (SHARED / "cifar10").is_dir(), reason="CIFAR-10 is not here")
def test_cells_run_alone_and_make_tables_maps_and_a_page(tmp_path: Path) -> None:
    study, results = read_regimes("quick"), tmp_path / "results"
    context = context_of(tmp_path / "runs")
    chosen = study.choose(CELLS)
    done = [each.name for each in study.run(chosen, context, results=results)]
    assert sorted(done) == sorted(CELLS)
    assert not list(study.run(chosen, context, results=results))
    assert (tmp_path / "runs" / "weights" / "quickstart-70.safetensors").is_file()
    assert not list((tmp_path / "runs").glob("*/captured"))
    found = read_results(results, CELLS)
    assert "write the pretrained weights into it" in found[CELLS[2]][UNFIT]
    trained = found[CELLS[1]]
    assert trained["start"]["accuracy"] >= 0.7
    assert trained["images"] == 16
    assert {"ig", "sme"} <= set(trained["rows"])
    assert set(trained["membership"]["attacks"]) == {"fedmia", "cosine", "loss"}
    points = collect_points(study, found)
    assert points["quickstart", "fresh", 4, "step", "malicious"].share == 1.0
    assert study.format_tables is not None
    shown = "\n".join(study.format_tables(study, results))
    assert "quickstart CNN, malicious server" in shown
    assert "ResNet-18" not in shown
    rows = make_result_rows(study, results)
    assert {row["piece"] for row in rows if row["ours"] is not None} == set(CELLS)
    assert study.draw_figures is not None
    drawn = study.draw_figures(study, results, tmp_path)
    assert [path.stem for path in drawn] == [
        *("regimes_honest", "regimes_malicious", "regimes_membership")
    ]
    page = "\n".join(write_page(study, found))
    assert "| fresh | 1 step | – | 100% | – | – |" in page
    assert "Weights `fresh`: " in page


def test_the_page_is_what_the_results_say() -> None:
    study = load_study("regimes")
    results = read_results(ROOT / "results" / "regimes", [e.name for e in study.experiments])
    written = (ROOT / "docs" / "regimes.md").read_text(encoding="utf-8")
    assert written == "\n".join(write_page(study, results)) + "\n"


def test_the_pieces_for_a_gpu_leave_no_cell_out(tmp_path: Path) -> None:
    said = tmp_path / "keyhole"
    said.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    said.chmod(0o755)
    study, named = load_study("regimes"), set()
    script = (ROOT / "tools" / "regimes_gpu.sh").read_text()
    count = script.count(" measure '")
    for piece in range(1, count + 1):
        command = ["sh", str(ROOT / "tools" / "regimes_gpu.sh"), str(piece), str(said)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        words = done.stdout.split()
        assert words[:2] == ["study", "regimes"]
        patterns = words[2 : words.index("--device")]
        named |= {each.name for each in study.choose(patterns)}
    assert named == {each.name for each in study.experiments}
    again = ["sh", str(ROOT / "tools" / "regimes_gpu.sh"), str(count + 1), str(said)]
    assert subprocess.run(again, capture_output=True, check=False).returncode == 2
