"""Figures 2, 3, 4, 6 and 7 from the results."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keyhole.atomic import write_bytes
from keyhole.update import read_safetensors
from keyhole_studies.base import Study
from keyhole_studies.drawing import save_png
from keyhole_studies.mjp.vit_pictures import draw_positions, draw_variances
from keyhole_studies.result_files import read_result, read_results

ATTENTION = "attention"
"""The experiment whose result holds Figure 4."""
POSITIONS = "positions.safetensors"
"""The position embeddings of some trained networks, beside the results."""


def draw_figures(study: Study, results: Path, folder: Path) -> list[Path]:
    """Draws the figures that there are results for; returns their paths."""
    labels = study.labels["figures"]
    found = {labels[name]: result for name, result in read_results(results, labels).items()}
    paths = []
    if found:
        paths.append(
            draw_curves(found, points_by_gamma, "gamma at inference", folder / "figure-2.png")
        )
        paths.append(draw_curves(found, points_by_epoch, "epoch", folder / "figure-6.png"))
    attention = read_result(results, ATTENTION)
    if attention is not None:
        write_bytes(folder / "figure-4.png", base64.b64decode(attention["drawn"]))
        paths.append(folder / "figure-4.png")
    if (results / POSITIONS).is_file():
        tensors = read_safetensors(results / POSITIONS)[0]
        tables = {labels.get(name, name): table for name, table in tensors.items()}
        side = round(len(next(iter(tables.values()))) ** 0.5)
        paths.append(draw_variances(tables, folder / "figure-3.png"))
        paths.append(draw_positions(tables, (side, side), folder / "figure-7.png"))
    return paths


Curve = Callable[[Mapping[str, Any]], tuple[list[float], list[float]]]
"""Where a result's points lie: across and up."""


def points_by_gamma(result: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    values = result["evaluation"]["accuracy_by_gamma"]
    return [float(gamma) for gamma in values], [100 * value for value in values.values()]


def points_by_epoch(result: Mapping[str, Any]) -> tuple[list[float], list[float]]:
    curve = result["training"]["curve"]
    return [point[0] for point in curve], [100 * point[1] for point in curve]


def draw_curves(
    found: Mapping[str, Mapping[str, Any]], curve: Curve, across: str, path: Path
) -> Path:
    """Draws the top-1 accuracy of every network against something. Returns ``path``, a PNG."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for (name, result), mark in zip(found.items(), "osD^vP", strict=False):
            axes.plot(*curve(result), marker=mark, markersize=4, label=name)
        axes.set_xlabel(across)
        axes.set_ylabel("top-1, CIFAR-10 (%)")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(frameon=False, fontsize=8)

    return save_png(draw, path, size=(5.2, 3.4))
