"""A result says what it lacks; a study says how much of its paper agrees."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from keyhole.progress import NullProgress
from keyhole_studies import STUDIES, load_study
from keyhole_studies.audits import AuditExperiment
from keyhole_studies.base import StudyContext
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import attack_gap
from keyhole_studies.result_files import SHIPPED, read_result, write_result
from keyhole_studies.summary import (
    Cell,
    count_cells,
    find_explanations,
    format_summary,
    read_cells,
    summarise,
)

CONTEXT = StudyContext(Path("runs"), None, "cpu", NullProgress())
PAPERS = ("dia", "mjp", "csvar", "tip")
LEAST_IMAGES = 8
"""A row of a table rests on as many images at least, or its cell is done in part."""


def shipped(study: str, name: str) -> dict:
    found = read_result(SHIPPED / study, name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("study", "name", "change", "gap"),
    [
        ("dia", "mlp-mnist-p25", {}, ""),
        ("dia", "mlp-mnist-p25", {"images": 8}, "part (8 of 128 images)"),
        ("dia", "mlp-mnist-p25", {"rows": {}}, "part (without linear)"),
        (
            "dia",
            "mlp-mnist-p25",
            {"stage": {"batch_size": 4}},
            "stale (clients: batch_size 4, now 1)",
        ),
        ("dia", "vit-b16-imagenet-p10", {}, "part (4 of 8 images)"),
        ("dia", "mlp-mnist-p25", {"setting": {"model": "mlp"}}, ""),
        ("dia", "mlp-mnist-p25", {"setting": {"model": "lenet"}}, "stale (model lenet, now mlp)"),
        ("mjp", "match-deit-g10", {}, "part (1 of 8 images)"),
        ("mjp", "long-deit-J", {}, "part (250 of 2,000 corrupted images)"),
        ("mjp", "deit-J", {}, ""),
        ("mjp", "deit-J", {"defense": "none"}, "stale (defense none, now mjp("),
        ("mjp", "april-deit-s", {"images": 2}, "part (2 of 16 images)"),
        ("csvar", "table-mnist-resnet-csvar", {}, ""),
        (
            "csvar",
            "table-mnist-resnet-csvar",
            {"recipe": {"rounds": 5}},
            "stale (training: rounds 5",
        ),
        ("csvar", "membership-csvar", {"plan": {"epochs": 5}}, "stale (plan: epochs 5, now 60)"),
        ("csvar", "gan-mnist-csvar", {"attack": {"rounds": 5}}, "stale (attack: rounds 5"),
        ("tip", "heat-cifar10", {}, ""),
        ("tip", "heat-cifar10", {"layer": "layer4"}, "stale (layer layer4, now last convolution)"),
        ("tip", "heat-cifar10", {"images": 1}, "part (10 of 100 pairs)"),
        (
            "tip",
            "utility-cifar10-tip",
            {"recipe": {"lr": 9.0}},
            "stale (training: lr 9.0, now 0.01)",
        ),
        ("tip", "utility-cifar10-tip", {"recipe": {"rounds": 20}}, "part (20 of 30 rounds)"),
    ],
)
def test_a_gap_is_said_in_words(study: str, name: str, change: dict, gap: str) -> None:
    found = load_study(study).find(name).find_gap({**shipped(study, name), **change}, CONTEXT)
    assert found.startswith(gap) if gap else found == ""


def test_fewer_iterations_are_a_part_and_other_parameters_are_stale() -> None:
    row = {"parameters": {"iterations": 800, "tv": 1e-6}}
    assert attack_gap("ig(iterations=800)", row, None) == ""
    assert attack_gap("ig(iterations=2000)", row, None) == "part (800 of 2,000 iterations of ig)"
    assert attack_gap("ig", row, 1000) == "part (800 of 1,000 iterations of ig)"
    assert attack_gap("ig(tv=1e-5)", row, None) == "stale (ig: tv 1e-06, now 1e-05)"
    assert attack_gap("dia", None, None) == "part (without dia)"


@pytest.mark.parametrize("name", PAPERS)
def test_every_row_rests_on_enough_images_or_is_done_in_part(name: str) -> None:
    audits = [e for e in load_study(name).experiments if isinstance(e, AuditExperiment)]
    assert audits
    for audit in audits:
        assert audit.stage.victims * audit.stage.batch_size >= LEAST_IMAGES, audit.name
        known = read_result(SHIPPED / name, audit.name)
        if known is not None and known["images"] < LEAST_IMAGES:
            assert audit.find_gap(known, CONTEXT).startswith("part ("), audit.name


@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_has_a_row_and_the_last_line_counts_them(name: str) -> None:
    study = load_study(name)
    text = list(format_summary(study, SHIPPED / name))
    cells = read_cells(study, SHIPPED / name)
    rows = {line.split()[0]: line for line in text if line.startswith("  ")}
    for cell in cells:
        row = rows[cell.experiment.name]
        assert cell.rests_on in row
        assert bool(cell.rests_on) == cell.ran
        assert all(str(figure) in row for figure in cell.figures)
        assert cell.figures or cell.found in row
        assert bool(cell.figures or cell.found) == cell.ran
        assert cell.gap in row
        assert ("*" in row) == any(not figure.agrees for figure in cell.figures)
    agree = sum(cell.verdict == "agrees" for cell in cells)
    compared = sum(bool(cell.figures) and not cell.gap for cell in cells)
    assert sum(bool(cell.gap) for cell in cells) == sum(
        int(line) for line in re.findall(r"(\d+) (?:in part|stale)", text[-1])
    )
    assert text[-1].startswith(f"{agree} of {compared} cells with figures of the paper within")
    told = summarise(study, SHIPPED / name)
    assert told["line"] == text[-1]
    assert {n: c["verdict"] for n, c in told["cells"].items()} == {
        cell.experiment.name: cell.verdict for cell in cells
    }
    waiting = sum(not cell.ran for cell in cells)
    assert (f"{waiting} not run" in text[-1]) == bool(waiting)


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_an_explanation_is_an_experiment_of_the_study(name: str) -> None:
    study = load_study(name)
    names = {experiment.name for experiment in study.experiments}
    for experiment in study.experiments:
        assert set(experiment.explained_by) <= names
        assert experiment.name not in experiment.explained_by


@pytest.mark.parametrize(
    ("seen", "verdict"), [(0.006, "differs"), (0.2, "differs"), (0.349, "explained")]
)
def test_a_cell_is_explained_only_by_a_result_that_is_much_nearer_to_the_paper(
    tmp_path: Path, seen: float, verdict: str
) -> None:
    study = load_study("dia")
    name = "lenet-cifar10-p25"  # IG sees .006, the paper's .48

    def read() -> Cell:
        (cell,) = [c for c in read_cells(study, tmp_path) if c.experiment.name == name]
        return cell

    write_result(tmp_path, name, shipped("dia", name))
    assert read().verdict == "differs"
    other = {**shipped("dia", name), "piece": "lenet-tanh-cifar10-p25"}
    other["rows"]["ig"]["metrics"]["ssim"]["mean"] = seen
    write_result(tmp_path, "lenet-tanh-cifar10-p25", other)
    assert read().verdict == verdict
    if verdict == "explained":
        write_result(tmp_path, "lenet-tanh-cifar10-p25", {**other, "images": 8})
        *lines, last = format_summary(study, tmp_path)
        (line,) = [line for line in lines if "tanh in place" in line]
        assert line.endswith("tanh in place of sigmoids: part (8 of 128 images)")
        assert "1 explained (1 by cells that are not whole)" in last


def test_every_figure_that_differs_needs_an_explanation(tmp_path: Path) -> None:
    study = load_study("dia")
    cell = study.find("lenet-cifar10-p25")
    result = shipped("dia", "lenet-tanh-cifar10-p25")
    write_result(tmp_path, "lenet-tanh-cifar10-p25", result)
    ig, wiig = (Comparison(attack, "ssim", 0.0, 0.48) for attack in ("ig", "wiig"))
    assert find_explanations(study, cell, [ig], tmp_path) == ("lenet-tanh-cifar10-p25",)
    assert find_explanations(study, cell, [ig, wiig], tmp_path) == ()


def test_cells_are_counted() -> None:
    study = load_study("dia")
    near, far = (Comparison("ig", "ssim", ours, 0.5) for ours in (0.54, 0.56))
    one = study.experiments[0]
    cells = [
        Cell(one, True, (near,), ()),
        Cell(one, True, (near, far), ()),
        Cell(one, True, (far,), ("x",)),
        Cell(one, True, (), ()),
        Cell(one, False, (), ()),
        Cell(one, True, (near,), (), gap="part (4 of 128 images)"),
        Cell(one, True, (near,), (), gap="stale (lr 1, now 2)"),
    ]
    assert count_cells(cells) == (
        "1 of 3 cells with figures of the paper within tolerance (.05 SSIM, 2 dB, 3 points), "
        "1 explained, 1 neither, 1 without a figure of the paper; 1 in part, 1 stale; "
        "1 not run (1 for want of a GPU)"
    )
    without = Cell(dataclasses.replace(one, waits=""), False, (), ())
    assert count_cells([without]).endswith("; 1 not run yet")
    assert count_cells([without, cells[4]]).endswith(
        "2 not run (1 not run yet, 1 for want of a GPU)"
    )
    assert [cell.verdict for cell in cells[-2:]] == ["part", "stale"]
