"""What was measured beside the bounds: lines of text, and a picture."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole.report.drawing import COLOURS, GREY, as_png
from keyhole.studies.base import Study, read_result
from keyhole.studies.text_tables import table

BOUNDS = {
    "printed": ("Theorem 1 as printed", GREY, ":"),
    "doubled": ("Theorem 1, corrected and doubled", COLOURS[1], "--"),
    "unrolled": ("ours: noise moves the weights", COLOURS[2], "-."),
}
PANELS = {
    "e1-none": "no noise",
    "e1-beta-005": "TIP, fixed beta = .05",
    "e1-beta-03": "TIP, fixed beta = .3",
    "e1-calibrated": "TIP, calibrated beta",
}


def tables(study: Study, results: Path) -> Iterator[str]:
    """The gap at the end beside every bound; the least factor between them; where one is broken."""
    rows = []
    for piece in study.pieces:
        found = read_result(results, piece)
        if found is not None:
            rows.append(row(found))
    yield f"{study.paper}, Theorem 1: F(w_T) - F* on logistic regression, and bounds on it"
    head = ("piece", "beta", "steps", "gap", *(f"{n} (least factor)" for n in COLUMNS))
    yield from table("At the last round; ! marks a bound that was broken, and when", head, rows)
    yield ""
    yield "  Rates are those of the corrected theorem; in printed-*, the paper's own."


COLUMNS = ("printed", "corrected", "doubled", "unrolled")


def row(found: Mapping[str, Any]) -> list[str]:
    first, last = found["beta"]["first"], found["beta"]["last"]
    beta = f"{first:.3g}" if first == last else f"{first:.3g} to {last:.3g}"
    cells = [found["piece"], beta, str(found["steps"][-1]), f"{found['gap']['mean'][-1]:.4f}"]
    for name in COLUMNS:
        if name not in found["bounds"]:
            cells.append("-")
            continue
        broken = found["broken_after_rounds"][name]
        factor = found["least_looseness"][name]
        said = f"({factor:.3g})" if broken is None else f"({factor:.3g}) ! round {broken}"
        cells.append(f"{found['bounds'][name][-1]:.3g} {said}")
    return cells


def draw(results: Path, out: Path) -> list[Path]:
    """The gap and its bounds over local steps, a panel a strength, of pieces that were run."""
    found = {
        words: json.loads((results / f"{name}.json").read_text(encoding="utf-8"))
        for name, words in PANELS.items()
        if (results / f"{name}.json").is_file()
    }
    return [panels(found, out / "tip_theorem.png")] if found else []


def panels(found: Mapping[str, Mapping[str, Any]], path: Path) -> Path:
    """One panel a result; both axes logarithmic."""

    def on(figure: Any) -> None:
        grid = figure.subplots(1, len(found), sharey=True, squeeze=False)[0]
        for axes, (words, result) in zip(grid, found.items(), strict=True):
            curves(axes, result)
            axes.set_title(words)
            axes.set_xlabel("local steps T")
        grid[0].set_ylabel("F(w) - F*")
        lines, names = grid[0].get_legend_handles_labels()
        figure.legend(lines, names, loc="outside lower center", ncols=4, frameon=False)

    return as_png(on, path, size=(2.6 * len(found) + 0.4, 3.3))


def curves(axes: Any, result: Mapping[str, Any]) -> None:
    """What was measured, with a band from least to greatest, and the bounds."""
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
