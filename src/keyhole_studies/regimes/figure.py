"""The maps: images read by an honest and by a malicious server, and membership, as heat maps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.drawing import save_png
from keyhole_studies.regimes.points import Key, Point, read_points
from keyhole_studies.regimes.tables import format_auc

HEAT = "cividis"
"""Looks the same to people who cannot tell red from green."""
DARK = 0.45
"""Up to this share of the scale, numbers are white."""
EMPTY, LINES = "#f2f2f2", "#b0b0b0"
"""Colours of a cell that was not run, and of the hatching over it."""
FILES = {
    "honest": "regimes_honest.png",
    "malicious": "regimes_malicious.png",
    "membership": "regimes_membership.png",
}


def draw_maps(study: Study, results: Path, folder: Path) -> list[Path]:
    """One picture for each server, and one of membership; of what was never run there is none."""
    points = read_points(study, results)
    return [
        save_map(study, points, what, folder / file)
        for what, file in FILES.items()
        if any(read_value(point, what) is not None for point in points.values())
    ]


def read_value(point: Point, what: str) -> float | None:
    """What a map shows of one regime; None: it is not of this map, or could not be measured."""
    if what == "membership":
        return point.auc
    return point.share if point.key[4] == what else None


def save_map(study: Study, points: Mapping[Key, Point], what: str, path: Path) -> Path:
    """Networks across, weights down; in each panel batches across, local training down."""
    networks, weights = study.labels["network"], study.labels["weights"]

    def draw(figure: Any) -> None:
        grid = figure.subplots(len(weights), len(networks), squeeze=False, sharex=True, sharey=True)
        for row, (start, amount) in zip(grid, weights.items(), strict=True):
            for axes, (network, label) in zip(row, networks.items(), strict=True):
                draw_panel(axes, study, make_finder(points, what, network, start), what)
                if start == next(iter(weights)):
                    axes.set_title(label)
            row[0].set_ylabel(f"{amount} weights")
        for axes in grid[-1]:
            axes.set_xlabel("batch")
        figure.suptitle(TITLES[what], fontsize=10)

    return save_png(draw, path, size=(1.9 * len(networks), 1.5 * len(weights) + 0.7))


TITLES = {
    "honest": "Share of images read, honest server (hatched: not run)",
    "malicious": "Share of images read, malicious server (hatched: not run)",
    "membership": "AUC of the best membership attack (0.5: guessing; hatched: not run)",
}


def make_finder(
    points: Mapping[Key, Point], what: str, network: str, weights: str
) -> Callable[[int, str], float | None]:
    """Finds the value of a batch and a local training in one panel."""
    server = "honest" if what == "membership" else what

    def find(batch: int, local: str) -> float | None:
        point = points.get((network, weights, batch, local, server))
        return None if point is None else read_value(point, what)

    return find


def draw_panel(
    axes: Any, study: Study, find: Callable[[int, str], float | None], what: str
) -> None:
    """One network with one kind of weights: a square for each batch and local training."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    batches, local = list(study.labels["batch"]), study.labels["local"]
    for down, done in enumerate(local):
        for across, size in enumerate(batches):
            value, place = find(int(size), done), (across - 0.5, down - 0.5)
            if value is None:
                square = Rectangle(place, 1, 1, linewidth=0, facecolor=EMPTY, edgecolor=LINES)
                square.set_hatch("////")
                axes.add_patch(square)
                continue
            height = max(0.0, 2 * value - 1) if what == "membership" else value
            axes.add_patch(Rectangle(place, 1, 1, facecolor=colormaps[HEAT](height), linewidth=0))
            text = format_auc(value) if what == "membership" else f"{value:.0%}"
            colour = "white" if height < DARK else "black"
            axes.text(across, down, text, ha="center", va="center", fontsize=7, color=colour)
    axes.set_xlim(-0.5, len(batches) - 0.5)
    axes.set_ylim(len(local) - 0.5, -0.5)
    axes.set_xticks(range(len(batches)), batches)
    axes.set_yticks(range(len(local)), list(local.values()))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
