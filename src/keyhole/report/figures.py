"""Plots and pictures as text that can stand inside a page."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image
from torch import Tensor

from keyhole.auditing.membership_result import Trial
from keyhole.auditing.sections import Section
from keyhole.report.drawing import LARGE, Curve, draw_losses, draw_rocs, draw_sweeps
from keyhole.report.view import Sweep

INK = "#123456"
"""Drawn in this colour, then replaced by the page's own text colour, light or dark."""
FONT = ("font-size", "font-family")
"""What the short form of a font names last."""
SWEEP_SIZE, LOSS_SIZE, ROC_SIZE = (8.4, 3.6), (3.6, 2.2), (8.4, 3.7)
"""Widths and heights in inches."""


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


def sweep_plot(section: Section, lines: Sequence[Sweep]) -> str:
    """How PSNR and SSIM fall as a defense grows stronger: an SVG that takes the page's colours."""
    return as_svg(lambda figure: draw_sweeps(figure, section, lines), size=SWEEP_SIZE)


def loss_plot(curves: Sequence[Curve]) -> str:
    """The attacker's own loss over its iterations, one line per victim: an SVG."""
    return as_svg(lambda figure: draw_losses(figure, curves), size=LOSS_SIZE)


def roc_plot(trial: Trial, others: int) -> str:
    """Members found against false alarms, one line per attacker: an SVG."""
    return as_svg(lambda figure: draw_rocs(figure, trial, others), size=ROC_SIZE)


def as_svg(draw: Callable[[Any], None], *, size: tuple[float, float]) -> str:
    """What ``draw`` puts on a figure, as an SVG that takes the page's colours."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(figure_style(INK)):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    return without_styles(svg[svg.index("<svg") :].replace(INK, "currentColor"))


def figure_style(ink: str) -> Any:
    """matplotlib's settings for all figures: text and axes in one colour, the same file twice."""
    return {
        "text.color": ink,
        "axes.edgecolor": ink,
        "axes.labelcolor": ink,
        "xtick.color": ink,
        "ytick.color": ink,
        "svg.fonttype": "none",
        "svg.hashsalt": "keyhole",
        "pdf.fonttype": 42,
        "font.family": "sans-serif",
        "font.size": 10,
    }


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
