"""The picture of Figure 3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.drawing import COLOURS, DASHES, GREY, save_png
from keyhole_studies.result_files import read_result
from keyhole_studies.tip.curves import CurveExperiment

Curve = tuple[CurveExperiment, Mapping[str, Any]]
"""A curve's experiment and its result."""


def draw_curves(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws Figure 3 of the curves that have results, one picture for each way to train."""
    by_settings: dict[str, list[Curve]] = {}
    for experiment in study.experiments:
        if isinstance(experiment, CurveExperiment):
            curves = by_settings.setdefault(experiment.settings.name, [])
            result = read_result(results, experiment.name)
            if result is not None:
                curves.append((experiment, result))
    return [
        draw_panels(curves, folder / f"figure-3-{name}.png")
        for name, curves in by_settings.items()
        if curves
    ]


def draw_panels(curves: Sequence[Curve], path: Path) -> Path:
    """Draws accuracy over rounds: one panel per data set and partition, one line per defense.

    Circles are the paper's, as far as the rounds go. Returns ``path``, a PNG.
    """
    panels: dict[tuple[str, str], list[Curve]] = {}
    for experiment, result in curves:
        key = (experiment.data_name, experiment.partition_name)
        panels.setdefault(key, []).append((experiment, result))
    defenses = list(dict.fromkeys(experiment.defense for experiment, _ in curves))
    best = max(point["accuracy"] for _, result in curves for point in result["points"])

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (names, some) in zip(grid, panels.items(), strict=True):
            for experiment, result in some:
                draw_line(axes, experiment, result, defenses.index(experiment.defense))
            axes.set_title(", ".join(names))
            axes.set_xlabel("rounds")
            axes.set_ylim(0, min(1, 1.35 * best))
            axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
            axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=7)
        grid[0].set_ylabel("accuracy")

    return save_png(draw, path, size=(3.6 * len(panels) + 0.4, 3.2))


def draw_line(
    axes: Any, experiment: CurveExperiment, result: Mapping[str, Any], place: int
) -> None:
    """Draws one defense's accuracy, in its own colour and dashes, and the paper's beside it."""
    style = {"color": COLOURS[place % len(COLOURS)], "linestyle": DASHES[place % len(DASHES)]}
    rounds = [point["round"] for point in result["points"]]
    accuracy = [point["accuracy"] for point in result["points"]]
    axes.plot(rounds, accuracy, label=experiment.label or experiment.defense, **style)
    paper = {int(number): value for number, value in experiment.paper.items()}
    theirs = {number: value for number, value in paper.items() if number <= rounds[-1]}
    if theirs:
        axes.plot([*theirs], [*theirs.values()], "o", color=style["color"], fillstyle="none")
