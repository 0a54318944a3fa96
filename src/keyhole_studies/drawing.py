"""The look of all figures, and how they become PNG files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
"""Okabe and Ito's, which the colour-blind can tell apart; lines differ in their dashes too."""
DASHES = ("-", "--", "-.", ":")
MARKS = ("o", "s", "^", "D", "v", "P", "X")
HEAT = "inferno"
GREY = "#9a9a9a"
DPI = 150


def save_png(draw: Callable[[Any], None], path: Path, *, size: tuple[float, float]) -> Path:
    """Saves what ``draw`` puts on a figure as a PNG. Returns ``path``.

    Args:
        draw: Draws on a matplotlib figure.
        path: The file to write; its folder is made.
        size: Width and height in inches.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {"font.size": 9, "axes.titlesize": 9, "font.family": "sans-serif"}
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=DPI, metadata={"Software": None})
    return path


def show_image(axes: Any, image: Tensor) -> None:
    """Shows an image ``[C, H, W]`` in [0, 1], grey or in colour, without a frame."""
    pixels = image.detach().cpu().expand(3, -1, -1).permute(1, 2, 0).clamp(0, 1)
    axes.imshow(pixels.numpy(), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


AROUND = tuple(
    (far * across, far * up)
    for far in (6, 11, 17)
    for across, up in ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
)
"""Where a mark's name may stand, in points from it; the first that is free is taken."""


def name_marks(axes: Any, names: Sequence[tuple[str, tuple[float, float], str]]) -> None:
    """Writes names beside marks, ``(name, place, colour)``: over neither a mark nor another name.

    A name stands nearest to its own mark. A name without such a place is left out: the legend still
    tells the mark's kind.
    """
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()
    at = axes.transData.transform([place for _, place, _ in names])
    frame, reach = axes.get_window_extent(), axes.figure.dpi / 72 * 4
    taken = [Bbox.from_extents(x - reach, y - reach, x + reach, y + reach) for x, y in at]
    if (legend := axes.get_legend()) is not None:
        taken.append(legend.get_window_extent())
    for number, (name, place, colour) in enumerate(names):
        for across, up in AROUND if name else ():
            note = axes.annotate(
                name,
                place,
                xytext=(across, up),
                textcoords="offset points",
                ha="left" if across > 0 else "right" if across < 0 else "center",
                va="bottom" if up > 0 else "top" if up < 0 else "center",
                fontsize=7,
                color=colour,
                in_layout=False,
            )
            box = note.get_window_extent()
            inside = frame.contains(*box.min) and frame.contains(*box.max)
            apart = [distance_to(box, mark) for mark in at]
            own = apart[number] == min(apart)
            if inside and own and not box.count_overlaps(taken):
                taken.append(box)
                break
            note.remove()


def distance_to(box: Any, point: Sequence[float]) -> float:
    """From a box to a point, in the box's units."""
    (left, low), (right, high), (x, y) = box.min, box.max, point
    return math.hypot(max(left - x, 0.0, x - right), max(low - y, 0.0, y - high))


def draw_comparison(columns: Mapping[str, Sequence[Tensor]], path: Path) -> Path:
    """Draws images ``[C, H, W]`` in [0, 1] side by side: one column per name, one row per image.

    Returns ``path``, a PNG.
    """
    rows = len(next(iter(columns.values())))

    def draw(figure: Any) -> None:
        panels = figure.subplots(rows, len(columns), squeeze=False)
        for column, (name, images) in enumerate(columns.items()):
            panels[0, column].set_title(name, fontsize=9)
            for line, image in zip(panels[:, column], images, strict=True):
                line.set_axis_off()
                show_image(line, image)

    return save_png(draw, path, size=(1.5 * len(columns), 1.55 * rows + 0.3))
