"""Privacy against accuracy: what the best attacker of an honest server reads, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.drawing import COLOURS, GREY, MARKS, name_marks, save_png
from keyhole_studies.field.points import Point
from keyhole_studies.field.tables import read_points

FILE = "field.png"


def draw_trade(study: Study, results: Path, folder: Path) -> list[Path]:
    """One panel for each network, one mark for each setting of which both are known."""
    points = [
        p for p in read_points(study, results) if p.accuracy is not None and p.worst("honest")
    ]
    labels = study.labels["network"]
    panels = {name: [p for p in points if p.network == name] for name in labels}
    panels = {name: found for name, found in panels.items() if found}
    if not panels:
        return []

    families = list(study.labels["defense"])
    measured = {point.family for own in panels.values() for point in own}
    shown = {f: label for f, label in study.labels["defense"].items() if f in measured}

    def draw(figure: Any) -> None:
        grid = figure.subplots(1, len(panels), squeeze=False, sharex=True, sharey=True)[0]
        for axes, (name, found) in zip(grid, panels.items(), strict=True):
            draw_panel(axes, found, shown, families)
            axes.set_title(labels[name])
        grid[0].set_ylabel("accuracy after training")
        grid[-1].legend(frameon=False, fontsize=6, loc="upper left", bbox_to_anchor=(1, 1))
        for axes, found in zip(grid, panels.values(), strict=True):
            names = [(p.strength, place_of(p), style_of(families, p.family)[0]) for p in found]
            name_marks(axes, names)

    return [save_png(draw, folder / FILE, size=(4.6 * len(panels) + 1.6, 4.2))]


def draw_panel(
    axes: Any, found: Sequence[Point], labels: Mapping[str, str], families: Sequence[str]
) -> None:
    """The marks of one network; a line joins the strengths of one defense.

    Args:
        axes: Where to draw.
        found: The network's points.
        labels: The defenses that any panel has, in words.
        families: All defenses, by which colours and marks are given.
    """
    for family, label in labels.items():
        own = [place_of(point) for point in found if point.family == family]
        colour, mark = style_of(families, family)
        across, up = zip(*own, strict=True) if own else ((), ())
        axes.plot(across, up, mark, ls="-", lw=0.6, ms=4, color=colour, label=label)
    axes.margins(0.12)
    axes.set_xlabel("PSNR of the attacker who reads most, honest server (dB)")
    axes.get_yaxis().set_major_formatter(lambda share, at: f"{share:.0%}")
    axes.locator_params(axis="y", steps=(1, 2, 5, 10))  # ticks that whole percents can name
    axes.grid(color=GREY, alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def place_of(point: Point) -> tuple[float, float]:
    """Where a setting's mark stands."""
    worst = point.worst("honest")
    assert worst is not None
    assert point.accuracy is not None
    return worst.psnr, point.accuracy


def style_of(families: Sequence[str], family: str) -> tuple[str, str]:
    """A colour and a mark that no other defense has together."""
    place = families.index(family)
    return COLOURS[place % len(COLOURS)], MARKS[(place + place // len(COLOURS)) % len(MARKS)]
