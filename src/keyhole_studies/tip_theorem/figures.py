"""The picture of what was measured beside the bounds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.drawing import COLOURS, GREY, save_png
from keyhole_studies.result_files import read_result
from keyhole_studies.tip_theorem.experiments import TheoremExperiment

BOUNDS = {
    "printed": ("Theorem 1 as printed", GREY, ":"),
    "doubled": ("Theorem 1, corrected and doubled", COLOURS[1], "--"),
    "unrolled": ("ours: noise moves the weights", COLOURS[2], "-."),
}
"""Label, colour and dashes of each bound that is drawn."""


def draw_figures(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws the gap and its bounds over local steps, one panel per strength that has a result."""
    found = {
        experiment.panel: result
        for experiment in study.experiments
        if isinstance(experiment, TheoremExperiment)
        and experiment.panel
        and (result := read_result(results, experiment.name)) is not None
    }
    return [draw_panels(found, folder / "tip_theorem.png")] if found else []


def draw_panels(found: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """Draws one panel per result, both axes logarithmic. Returns ``path``, a PNG."""

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (words, result) in zip(grid, found.items(), strict=True):
            draw_gap(axes, result)
            axes.set_title(words)
            axes.set_xlabel("local steps T")
        grid[0].set_ylabel("F(w) - F*")
        lines, names = grid[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False)

    return save_png(draw, path, size=(2.6 * len(found) + 0.4, 3.3))


def draw_gap(axes: Any, result: Mapping[str, Any]) -> None:
    """Draws what was measured, with a band from the least to the greatest, and the bounds."""
    steps, gap = result["steps"][1:], {name: v[1:] for name, v in result["gap"].items()}
    axes.plot(steps, gap["mean"], color=COLOURS[0], linewidth=2, label="measured")
    axes.fill_between(steps, gap["low"], gap["high"], color=COLOURS[0], alpha=0.2, linewidth=0)
    for name, (words, colour, dashes) in BOUNDS.items():
        if name in result["bounds"]:
            bound = result["bounds"][name][1:]
            axes.plot(steps, bound, color=colour, linestyle=dashes, linewidth=1.5, label=words)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
