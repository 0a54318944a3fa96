"""A result says what it lacks; a study says how much of its paper agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keyhole.progress import NullProgress
from keyhole_studies import STUDIES, load_study
from keyhole_studies.base import StudyContext
from keyhole_studies.comparisons import Comparison
from keyhole_studies.coverage import attack_gap
from keyhole_studies.result_files import SHIPPED, read_result
from keyhole_studies.summary import Cell, count_cells, format_summary, read_cells

CONTEXT = StudyContext(Path("runs"), None, "cpu", NullProgress())
PAPERS = ("dia", "mjp", "csvar", "tip")


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
def test_every_cell_has_a_row_and_the_last_line_counts_them(name: str) -> None:
    study = load_study(name)
    text = list(format_summary(study, SHIPPED / name))
    cells = read_cells(study, SHIPPED / name)
    named = {line.split()[0] for line in text if line.startswith("  ")}
    for cell in cells:
        if cell.verdict in ("not run", "differs", "explained"):
            assert cell.experiment.name in named
    agree = sum(cell.verdict == "agrees" for cell in cells)
    compared = sum(bool(cell.figures) for cell in cells)
    assert text[-1].startswith(f"{agree} of {compared} cells with figures of the paper within")
    waiting = sum(not cell.ran for cell in cells)
    assert (f"{waiting} not run" in text[-1]) == bool(waiting)


@pytest.mark.parametrize("name", sorted(STUDIES))
def test_an_explanation_is_an_experiment_of_the_study(name: str) -> None:
    study = load_study(name)
    names = {experiment.name for experiment in study.experiments}
    for experiment in study.experiments:
        assert set(experiment.explained_by) <= names
        assert experiment.name not in experiment.explained_by


def test_a_cell_is_explained_only_where_what_explains_it_has_a_result(tmp_path: Path) -> None:
    study = load_study("dia")
    name = "lenet-cifar10-p25"
    (tmp_path / f"{name}.json").write_text(json.dumps(shipped("dia", name)))
    (cell,) = [c for c in read_cells(study, tmp_path) if c.experiment.name == name]
    assert cell.verdict == "differs"
    other = {**shipped("dia", name), "piece": "lenet-tanh-cifar10-p25"}
    (tmp_path / "lenet-tanh-cifar10-p25.json").write_text(json.dumps(other))
    (cell,) = [c for c in read_cells(study, tmp_path) if c.experiment.name == name]
    assert cell.verdict == "explained"


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
    ]
    assert count_cells(cells) == (
        "1 of 3 cells with figures of the paper within tolerance (.05 SSIM, 2 dB, 3 points), "
        "1 explained, 1 neither, 1 without a figure of the paper; 1 not run (1 not run yet)"
    )
