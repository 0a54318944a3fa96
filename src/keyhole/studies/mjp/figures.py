"""Figures 2, 3, 6 and 7 from the results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from keyhole.atomic import read_json
from keyhole.report.vit_pictures import accumulated_curves, position_projection
from keyhole.update import read_safetensors

NAMES = {
    "long-deit-A": "DeiT",
    "long-deit-J": "MJP, gamma .1",
    "deit-J-g50": "MJP, gamma .5 (27 epochs)",
    "deit-J-g90": "MJP, gamma .9 (27 epochs)",
}
TABLES = "positions.safetensors"
"""The position embeddings of some trained networks, beside the results."""


def draw(results: Path, folder: Path) -> list[Path]:
    """Draws what there are results for."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {
        words: read_json(results / f"{name}.json")
        for name, words in NAMES.items()
        if (results / f"{name}.json").is_file()
    }
    made = []
    if found:
        made.append(plot(found, by_gamma, "gamma at inference", folder / "figure-2.png"))
        made.append(plot(found, by_epoch, "epoch", folder / "figure-6.png"))
    if (results / TABLES).is_file():
        tables = named_tables(results / TABLES)
        side = round(len(next(iter(tables.values()))) ** 0.5)
        made.append(accumulated_curves(tables, folder / "figure-3.png"))
        made.append(position_projection(tables, (side, side), folder / "figure-7.png"))
    return made


def named_tables(path: Path) -> dict[str, Tensor]:
    return {NAMES.get(name, name): table for name, table in read_safetensors(path)[0].items()}


Curve = Callable[[dict[str, Any]], tuple[list[float], list[float]]]


def by_gamma(result: dict[str, Any]) -> tuple[list[float], list[float]]:
    values = result["evaluation"]["accuracy_by_gamma"]
    return [float(g) for g in values], [100 * v for v in values.values()]


def by_epoch(result: dict[str, Any]) -> tuple[list[float], list[float]]:
    curve = result["training"]["curve"]
    return [row[0] for row in curve], [100 * row[1] for row in curve]


def plot(found: Mapping[str, dict[str, Any]], curve: Curve, along: str, path: Path) -> Path:
    """Top-1 of every network against something."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for (name, result), mark in zip(found.items(), "osD^vP", strict=False):
        axes.plot(*curve(result), marker=mark, markersize=4, label=name)
    axes.set_xlabel(along)
    axes.set_ylabel("top-1, CIFAR-10 (%)")
    axes.grid(visible=True, alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
    return path
