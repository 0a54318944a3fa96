"""Plots and pictures as text that can stand inside a page."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from keyhole.metrics import METRICS
from keyhole.report.view import Section, Sweep, undefended

INK = "#123456"
"""Drawn in this colour, then replaced by the page's own text colour, light or dark."""

COLOURS = ("#d1495b", "#2e86ab", "#8a6d3b", "#6a4c93")
FONT = ("font-size", "font-family")
"""What the short form of a font names last."""
LARGE = 64
"""Pictures from this size on are photographs: compressed, shown smooth."""


def data_uri(image: Tensor) -> str:
    """A uint8 ``[C, H, W]`` image as a data URI."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    if min(array.shape[:2]) >= LARGE:
        picture.save(buffer, "WEBP", quality=90)
        kind = "webp"
    else:
        picture.save(buffer, "PNG")
        kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def sweep_plot(section: Section, lines: list[Sweep]) -> str:
    """How PSNR and SSIM fall as a defense grows stronger: an SVG that takes the page's colours."""

    def draw(figure: Any) -> None:
        for axes, metric in zip(figure.subplots(1, 2), ("psnr", "ssim"), strict=True):
            draw_sweep(axes, section, lines, metric)

    return as_svg(draw, size=(8.4, 3.1))


def loss_plot(curves: Sequence[Sequence[tuple[int, float]]]) -> str:
    """The attacker's own loss over its iterations, a line a victim: an SVG."""

    def draw(figure: Any) -> None:
        axes = figure.subplots()
        for curve in curves:
            axes.plot(*zip(*curve, strict=True), color=COLOURS[1], alpha=0.6, linewidth=1)
        if all(loss > 0 for curve in curves for _, loss in curve):
            axes.set_yscale("log")
        axes.set_xlabel("iterations")
        axes.set_ylabel("attacker's loss")
        axes.spines[["top", "right"]].set_visible(False)

    return as_svg(draw, size=(3.6, 2.2))


def as_svg(draw: Callable[[Any], None], *, size: tuple[float, float]) -> str:
    """What ``draw`` puts on a figure, as an SVG that takes the page's colours."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {
        "text.color": INK,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "svg.fonttype": "none",
        "svg.hashsalt": "keyhole",
        "font.family": "sans-serif",
        "font.size": 10,
    }
    with rc_context(style):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    return without_styles(svg[svg.index("<svg") :].replace(INK, "currentColor"))


def without_styles(svg: str) -> str:
    """The same drawing by attributes alone, so that a page may forbid all styles but its own.

    >>> without_styles('<svg><path d="M0 0" style="fill: none; stroke: red"/></svg>')
    '<svg stroke-linejoin="round"><path d="M0 0" fill="none" stroke="red"/></svg>'
    """
    plain = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    plain = re.sub(r' style="([^"]*)"', lambda found: as_attributes(found[1]), plain)
    return plain.replace("<svg", '<svg stroke-linejoin="round"', 1)


def as_attributes(style: str) -> str:
    """Declarations of a style attribute as attributes of the element.

    >>> as_attributes("font: italic 10px Sans, serif; fill: none")
    ' font-size="10px" font-family="Sans, serif" fill="none"'
    """
    found = ""
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        name, value = (part.strip() for part in declaration.split(":", 1))
        short = re.search(r"([\d.]+px) (.+)", value) if name == "font" else None
        pairs = {name: value} if short is None else dict(zip(FONT, short.groups(), strict=True))
        found += "".join(f' {key}="{text}"' for key, text in pairs.items())
    return found


def draw_sweep(axes: object, section: Section, lines: list[Sweep], metric: str) -> None:
    """One panel: a line an attacker with its interval, the undefended score, the best null."""
    from matplotlib.axes import Axes

    assert isinstance(axes, Axes)
    for colour, line in zip(COLOURS, lines, strict=False):
        summaries = [f.metrics[metric] for f in line.scores]
        label = f"{line.attack} ({line.attacker})"
        axes.plot(line.values, [s.mean for s in summaries], "o-", color=colour, label=label)
        low, high = [s.low for s in summaries], [s.high for s in summaries]
        axes.fill_between(line.values, low, high, color=colour, alpha=0.15, linewidth=0)
    free = undefended(section, lines[0].attack)
    if free is not None:
        axes.axhline(free.metrics[metric].mean, color=INK, linestyle=":", label="no defense")
    null = max((b[metric] for b in section.baselines.values() if metric in b), default=None)
    if null is not None:
        axes.axhline(null, color=INK, linestyle="--", linewidth=0.8, label="best null baseline")
    values = np.asarray(lines[0].values)
    if (values > 0).all() and values.max() > 20 * values.min():
        axes.set_xscale("log")
    about = METRICS[metric]
    axes.set_xlabel(f"{lines[0].defense}: {lines[0].parameter}")
    axes.set_ylabel(f"{about.label}{f' ({about.unit})' if about.unit else ''}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
