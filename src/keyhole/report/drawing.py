"""Draws on matplotlib figures; text and lines take the style's colours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from keyhole.auditing.membership_result import Trial
from keyhole.auditing.sections import Section
from keyhole.metrics import METRICS, Metric
from keyhole.report.view import Sweep, find_undefended
from keyhole.terminal import escape_controls

COLOURS = ("#d1495b", "#2e86ab", "#8a6d3b", "#6a4c93", "#3a7d44", "#e07a1f", "#5f6b7a")
MARKS = {"naive": "o-", "paper": "s-.", "adaptive": "^--"}
OFF_THE_SCALE = 2
"""An undefended score above this many times the highest other value is not drawn to scale."""
DECADE = 10
"""Losses that differ by a smaller factor are drawn on a linear axis."""
LARGE = 64
"""Pictures of at least this size count as photographs: they are compressed and shown smooth."""

Curve = Sequence[tuple[int, float]]
"""Iterations and the loss at each."""


@dataclass(frozen=True)
class StripRow:
    """One row of pictures, uint8 ``[C, H, W]`` each, with a line below each; "" for none."""

    label: str
    pictures: tuple[Tensor, ...]
    captions: tuple[str, ...]


def draw_sweeps(figure: Any, section: Section, lines: Sequence[Sweep]) -> None:
    """Draws PSNR and SSIM of each attacker over a defense's parameter, side by side."""
    for axes, metric in zip(figure.subplots(1, 2), ("psnr", "ssim"), strict=True):
        draw_sweep(axes, section, lines, metric)
    marks, names = axes.get_legend_handles_labels()
    figure.legend(marks, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def draw_sweep(axes: Any, section: Section, lines: Sequence[Sweep], metric: str) -> None:
    """Draws a line per attacker with its interval, the undefended score, the best baseline."""
    about, ink = METRICS[metric], text_colour()
    attacks = list(dict.fromkeys(line.attack for line in lines))
    for line in lines:
        summaries = [f.metrics[metric] for f in line.scores]
        colour = COLOURS[attacks.index(line.attack) % len(COLOURS)]
        label = escape_mathtext(f"{line.attack} ({line.attacker})")
        means = [s.mean for s in summaries]
        axes.plot(line.values, means, MARKS[line.attacker], color=colour, label=label)
        low, high = [s.low for s in summaries], [s.high for s in summaries]
        axes.fill_between(line.values, low, high, color=colour, alpha=0.15, linewidth=0)
    highest = max(f.metrics[metric].high for line in lines for f in line.scores)
    free = find_undefended(section, lines[0].attack)
    if free is not None:
        draw_undefended(axes, free.metrics[metric].mean, highest, about)
    null = max((b[metric] for b in section.baselines.values() if metric in b), default=None)
    if null is not None:
        axes.axhline(null, color=ink, linestyle="--", linewidth=0.8, label="best null baseline")
    values = np.asarray(lines[0].values)
    if (values > 0).all() and values.max() > 20 * values.min():
        axes.set_xscale("log")
    axes.set_xlabel(escape_mathtext(f"{lines[0].defense}: {lines[0].parameter}"))
    axes.set_ylabel(f"{about.label}{f' ({about.unit})' if about.unit else ''}")
    axes.spines[["top", "right"]].set_visible(False)


def draw_undefended(axes: Any, value: float, highest: float, metric: Metric) -> None:
    """Draws the score without a defense: a line, or a number if it is far above the others."""
    style = {"color": text_colour(), "linestyle": ":"}
    if value <= OFF_THE_SCALE * highest:
        axes.axhline(value, label="no defense", **style)
        return
    axes.plot([], [], label="no defense", **style)
    words = f"no defense: {metric.format(value)} {metric.unit} (off the scale)"
    place = {"transform": axes.transAxes, "ha": "right", "va": "top", "fontsize": 8}
    axes.text(1.0, 1.0, words, **place)


def draw_losses(figure: Any, curves: Sequence[Curve]) -> None:
    """Draws the attacker's own loss over its iterations, one line per victim."""
    axes = figure.subplots()
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=COLOURS[1], alpha=0.6, linewidth=1)
    losses = [loss for curve in curves for _, loss in curve]
    if losses and min(losses) > 0 and max(losses) > DECADE * min(losses):
        axes.set_yscale("log")
    axes.set_xlabel("iterations")
    axes.set_ylabel("attacker's loss")
    axes.spines[["top", "right"]].set_visible(False)


def draw_strip(figure: Any, rows: Sequence[StripRow]) -> None:
    """Draws rows of pictures, with their labels to the left."""
    width = max(len(row.pictures) for row in rows)
    grid = figure.subplots(len(rows), width, squeeze=False)
    for row, line in zip(rows, grid, strict=True):
        place = {"transform": line[0].transAxes, "ha": "right", "va": "center"}
        line[0].text(-0.1, 0.5, escape_mathtext(row.label), fontsize=8, **place)
        for axes in line:
            axes.set_axis_off()
        for axes, picture, caption in zip(line, row.pictures, row.captions, strict=False):
            draw_picture(axes, picture)
            axes.set_title(caption, fontsize=6.5, y=-0.02, va="top", pad=0)


def draw_picture(axes: Any, picture: Tensor) -> None:
    """Draws a picture, uint8 ``[C, H, W]``: pixels as squares if it is small, else smooth."""
    array = picture.permute(1, 2, 0).numpy()
    small = min(array.shape[:2]) < LARGE
    axes.imshow(
        array[..., 0] if array.shape[-1] == 1 else array,
        **({"cmap": "gray", "vmin": 0, "vmax": 255} if array.shape[-1] == 1 else {}),
        interpolation="nearest" if small else "antialiased",
    )


def draw_rocs(figure: Any, trial: Trial, others: int) -> None:
    """Draws members found against false alarms, one line per attacker.

    The second panel shows the same on logarithmic axes, down to a single false alarm of ``others``.
    """
    attacks = list(dict.fromkeys(each.attack.split("(")[0] for each in trial.inferences))
    for axes, scale in zip(figure.subplots(1, 2), ("linear", "log"), strict=True):
        least = 1 / others if scale == "log" else 0.0
        for each in trial.inferences:
            axes.plot(
                *zip(*each.roc, strict=True),
                color=COLOURS[attacks.index(each.attack.split("(")[0]) % len(COLOURS)],
                linestyle="-" if each.attacker == "naive" else "--",
                linewidth=1.4,
                label=escape_mathtext(f"{each.attack} ({each.attacker})"),
            )
        axes.plot([least, 1], [least, 1], color=text_colour(), linestyle=":", label="guessing")
        axes.set(xscale=scale, yscale=scale, xlim=(least, 1), ylim=(least, 1))
        axes.set_xlabel("false alarms, share of the others")
        axes.spines[["top", "right"]].set_visible(False)
        if scale == "linear":
            axes.set_ylabel("members found, share")
    lines, names = axes.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False, fontsize=8)


def escape_mathtext(text: str) -> str:
    r"""Escapes text that matplotlib would draw as mathematics; line breaks stay.

    >>> print(escape_mathtext("$x$"))
    \$x\$
    """
    lines = [escape_controls(line) for line in text.split("\n")]
    return "\n".join(lines).replace("$", r"\$")


def text_colour() -> str:
    """Returns the colour of text in the current style."""
    from matplotlib import rcParams

    return str(rcParams["text.color"])
