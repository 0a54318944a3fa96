"""What reports show of a sweep: one table and one plot for each parameter of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from rich.console import Console

from keyhole.auditing.sweep_tables import Mean, ParameterTable, SweepPoint
from keyhole.auditing.verdict import MALICIOUS
from keyhole.metrics import METRICS
from keyhole.report.drawing import COLOURS, escape_mathtext
from keyhole.terminal import TextTable, say, say_table

SHOWN = ("read", "psnr", "ssim")
ON_TERMINALS = ("read", "psnr")
"""Metrics that the terminal has room for."""
SIZE = (8.4, 3.6)
"""Width and height of a plot in inches."""
INTERVALS = (
    "means over seeds of what the worst attacker saw, with 95% intervals: Student's t over seeds, "
    "over images where there is one seed; of shares no narrower than Wilson's"
)
MOST_LINES = 12
"""Lines of a plot; further settings are in the table only."""


def format_setting(value: Any) -> str:
    """A value as tables show it.

    >>> format_setting(1e-05), format_setting("mlp"), format_setting(8)
    ('1e-05', 'mlp', '8')
    """
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_mean(metric: str, mean: Mean) -> str:
    """A mean with its interval, in square brackets unless it has no width."""
    shown = METRICS[metric].format
    low, high = shown(mean.low), shown(mean.high)
    return shown(mean.mean) if low == high else f"{shown(mean.mean)} [{low}, {high}]"


def describe_point(point: SweepPoint) -> str:
    """The setting of a point, and its server unless that is honest."""
    server = f"; {MALICIOUS} server" if point.server == MALICIOUS else ""
    return f"{point.setting}{server}" or "as planned"


def print_sweep(tables: Sequence[ParameterTable], console: Console) -> None:
    """Prints one table for each parameter.

    Args:
        tables: The tables.
        console: Where to print.
    """
    for table in tables:
        say(console=console)
        say_table(build_text_table(table), console)


def build_text_table(table: ParameterTable) -> TextTable:
    """The table of one parameter for a terminal."""
    text = TextTable(f"{table.parameter}: what the worst attacker saw", caption=INTERVALS)
    text.add_column(table.parameter.rpartition(".")[2], fold=True, at_least=8)
    text.add_column("setting", fold=True, at_least=16)
    text.add_column("seeds", right=True)
    text.add_column("images", right=True)
    for name in ON_TERMINALS:
        text.add_column(f"{METRICS[name].label} {METRICS[name].arrow}", right=True)
    text.add_column("by", fold=True, at_least=10)
    for point in table.points:
        text.add_row(
            format_setting(point.value),
            describe_point(point),
            str(point.seeds),
            str(point.images),
            *(format_mean(name, getattr(point, name)) for name in ON_TERMINALS),
            ", ".join(point.by) if point.read.mean else "nobody read an image",
        )
    return text


def group_lines(table: ParameterTable) -> dict[str, list[SweepPoint]]:
    """The points of each setting, which a plot joins."""
    lines: dict[str, list[SweepPoint]] = {}
    for point in table.points:
        lines.setdefault(describe_point(point), []).append(point)
    return dict(list(lines.items())[:MOST_LINES])


def draw_parameter(figure: Any, table: ParameterTable) -> None:
    """Draws the share of images read and the PSNR over a parameter's values, side by side.

    Args:
        figure: A figure of matplotlib.
        table: The parameter's table.
    """
    lines = group_lines(table)
    values = list(dict.fromkeys(point.value for point in table.points))
    places = {value: value if table.numeric else n for n, value in enumerate(values)}
    for axes, name in zip(figure.subplots(1, 2), ("read", "psnr"), strict=True):
        for number, (label, points) in enumerate(lines.items()):
            draw_line(axes, [places[p.value] for p in points], points, name, number, label)
        about = METRICS[name]
        axes.set_ylabel(f"{about.label}{f' ({about.unit})' if about.unit else ''}")
        axes.set_xlabel(escape_mathtext(table.parameter))
        axes.spines[["top", "right"]].set_visible(False)
        if name == "read":
            axes.set_ylim(-0.05, 1.05)
        if not table.numeric:
            axes.set_xticks(range(len(values)), [escape_mathtext(str(v)) for v in values])
            axes.tick_params(axis="x", labelrotation=20)
        elif min(values) > 0 and max(values) / min(values) >= 10:
            axes.set_xscale("log")
    marks, names = axes.get_legend_handles_labels()
    figure.legend(marks, names, loc="outside lower center", ncols=2, frameon=False, fontsize=8)


def draw_line(
    axes: Any,
    places: Sequence[float],
    points: Sequence[SweepPoint],
    name: str,
    number: int,
    label: str,
) -> None:
    """Draws the points of one setting with their intervals, joined by a line."""
    means = [getattr(point, name) for point in points]
    axes.errorbar(
        places,
        [m.mean for m in means],
        yerr=[[m.mean - m.low for m in means], [m.high - m.mean for m in means]],
        color=COLOURS[number % len(COLOURS)],
        marker="o",
        linestyle="-" if len(points) > 1 else "none",
        linewidth=1.4,
        capsize=3,
        label=escape_mathtext(label),
    )


def describe_tables(tables: Sequence[ParameterTable]) -> list[dict[str, Any]]:
    """What the page shows of each parameter."""
    from keyhole.report.figures import render_svg

    return [
        {
            "parameter": table.parameter,
            "metrics": [METRICS[name] for name in SHOWN],
            "rows": [
                {
                    "value": format_setting(point.value),
                    "setting": describe_point(point),
                    "point": point,
                    "cells": [format_mean(name, getattr(point, name)) for name in SHOWN],
                }
                for point in table.points
            ],
            "svg": render_svg(partial(draw_parameter, table=table), size=SIZE),
        }
        for table in tables
    ]
