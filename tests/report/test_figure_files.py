"""Figures as files: every kind, in every format, drawn from what a run folder holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image

from keyhole.auditing import AuditResult, MembershipPlan, Plan, Stage, infer_membership, run_plan
from keyhole.errors import BadValue
from keyhole.report import write_figures
from keyhole.report.drawing import draw_losses, draw_sweep
from keyhole.report.view import find_sweeps

MAGIC = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> AuditResult:
    noise = tuple(f"gaussian(sigma={s})" for s in (0.001, 0.01, 0.1))
    stages = (
        Stage(data="faces", defenses=("none", *noise), attacks=("linear", "labels"), victims=2),
        Stage(data="digits", defenses=("dropout",), attacks=("ig",), victims=2, iterations=60),
    )
    return run_plan(Plan(stage=stages), out=tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def files(result: AuditResult, tmp_path_factory: pytest.TempPathFactory) -> Sequence[Path]:
    return write_figures(result, tmp_path_factory.mktemp("figures") / "new")


def test_every_figure_is_there_in_every_format(files: Sequence[Path]) -> None:
    names = {path.name for path in files}
    stems = [
        "strip-mlp-faces-none",
        *(f"strip-mlp-faces-gaussian-sigma-{s}" for s in (0.001, 0.01, 0.1)),
        "strip-mlp-digits-dropout-p-0.25",
        "sweep-mlp-faces-gaussian-sigma",
        "loss-mlp-digits-dropout-p-0.25-ig-iterations-60-paper",
    ]
    assert names == {f"{stem}.{kind}" for stem in stems for kind in MAGIC}
    for path in files:
        assert path.read_bytes().startswith(MAGIC[path.suffix[1:]])


def test_a_strip_shows_originals_above_what_was_seen(files: Sequence[Path]) -> None:
    path = next(p for p in files if p.name == "strip-mlp-faces-none.png")
    with Image.open(path) as picture:
        width, height = picture.size
        grey = picture.convert("L")
        assert grey.getpixel((0, 0)) == 255
        assert grey.getextrema()[0] < 60
    assert min(width, height) > 300


def test_text_can_be_searched_and_edited(files: Sequence[Path]) -> None:
    svg = next(p for p in files if p.name == "sweep-mlp-faces-gaussian-sigma.svg").read_text()
    for words in ("gaussian: sigma", "linear (adaptive)", "best null baseline", "off the scale"):
        assert words in svg


def test_the_same_result_gives_the_same_files(
    result: AuditResult, files: Sequence[Path], tmp_path: Path
) -> None:
    again = write_figures(result, tmp_path, ["svg", "pdf"])
    first = {path.name: path.read_bytes() for path in files}
    assert all(first[path.name] == path.read_bytes() for path in again)


def test_only_the_formats_asked_for_are_written(result: AuditResult, tmp_path: Path) -> None:
    assert {p.suffix for p in write_figures(result, tmp_path, ["svg"])} == {".svg"}


@pytest.mark.parametrize("formats", [["gif"], [], ["png", "../x"]])
def test_other_formats_are_refused(
    result: AuditResult, tmp_path: Path, formats: Sequence[str]
) -> None:
    with pytest.raises(BadValue, match="format: it is any of png, pdf, svg, got"):
        write_figures(result, tmp_path, formats)
    assert list(tmp_path.iterdir()) == []


def test_a_membership_run_has_its_curves(tmp_path: Path) -> None:
    plan = MembershipPlan(model="mlp", members=20, public=40, epochs=1, attacks=("loss",))
    (path,) = write_figures(infer_membership(plan), tmp_path, ["svg"])
    assert path.name == "roc-mlp-digits-none-1-epochs.svg"
    assert "guessing" in path.read_text()


def test_a_result_without_a_folder_has_no_pictures_but_plots(
    result: AuditResult, tmp_path: Path
) -> None:
    alone = AuditResult.load(result.save(tmp_path / "result.json"))
    names = {path.name.partition("-")[0] for path in write_figures(alone, tmp_path, ["svg"])}
    assert names == {"sweep", "loss"}


def test_a_name_with_dollars_is_no_mathematics(result: AuditResult, tmp_path: Path) -> None:
    values = result.to_json()
    for finding in values["findings"]:
        finding["model"] = "$\\frac$\x1b"
    hostile = AuditResult.from_json(values)
    texts = [path.read_text() for path in write_figures(hostile, tmp_path, ["svg"])]
    assert all("$\\frac$\\x1b" in text for text in texts)


def test_every_attacker_has_a_line(result: AuditResult) -> None:
    from matplotlib.figure import Figure

    section = result.sections[0]
    ((_, lines),) = find_sweeps(section).items()
    axes = Figure().subplots()
    draw_sweep(axes, section, lines * 4, "ssim")
    drawn = [line for line in axes.get_lines() if len(line.get_xdata()) == 3]
    assert len(drawn) == 8


@pytest.mark.parametrize(
    ("curve", "scale"),
    [
        ([(0, 1.0), (1, 1e-3)], "log"),
        ([(0, 0.7), (1, 0.6)], "linear"),
        ([(0, 1.0), (1, -1.0)], "linear"),
        ([], "linear"),
    ],
)
def test_losses_that_hardly_differ_have_a_linear_axis(
    curve: Sequence[tuple[int, float]], scale: str
) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    draw_losses(figure, [curve])
    assert figure.axes[0].get_yscale() == scale
