"""Makes plots and pictures that can be embedded in a page."""

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
"""A colour that is replaced by the page's own text colour, light or dark."""
FONT = ("font-size", "font-family")
"""The attributes for the last two parts of a ``font`` declaration."""
WIDEST = 256
"""Width and height of the largest picture on a page; the run folder holds it as it was."""
QUALITY = 80
"""Of photographs on a page, from 0 to 100."""
SWEEP_SIZE, LOSS_SIZE, ROC_SIZE = (8.4, 3.6), (3.6, 2.2), (8.4, 3.7)
"""Widths and heights in inches."""


def encode_picture(image: Tensor) -> str:
    """Encodes a uint8 ``[C, H, W]`` image as a data URI; a photograph is no larger than a page."""
    array = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(array[..., 0] if array.shape[-1] == 1 else array)
    buffer = io.BytesIO()
    if min(array.shape[:2]) >= LARGE:
        picture.thumbnail((WIDEST, WIDEST))
        picture.save(buffer, "WEBP", quality=QUALITY)
        kind = "webp"
    else:
        picture.save(buffer, "PNG")
        kind = "png"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def plot_sweep(section: Section, lines: Sequence[Sweep]) -> str:
    """Plots PSNR and SSIM over a defense's strength, as SVG."""
    return render_svg(lambda figure: draw_sweeps(figure, section, lines), size=SWEEP_SIZE)


def plot_losses(curves: Sequence[Curve]) -> str:
    """Plots the attacker's own loss over its iterations, one line per victim, as SVG."""
    return render_svg(lambda figure: draw_losses(figure, curves), size=LOSS_SIZE)


def plot_rocs(trial: Trial, others: int) -> str:
    """Plots members found against false alarms, one line per attacker, as SVG."""
    return render_svg(lambda figure: draw_rocs(figure, trial, others), size=ROC_SIZE)


def render_svg(draw: Callable[[Any], None], *, size: tuple[float, float]) -> str:
    """Renders what ``draw`` puts on a figure as an SVG that takes the page's colours."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(figure_style(INK)):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    return remove_styles(svg[svg.index("<svg") :].replace(INK, "currentColor"))


def figure_style(ink: str) -> Any:
    """Returns matplotlib's settings for all figures: one colour, and reproducible files."""
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


def remove_styles(svg: str) -> str:
    """Replaces styles by attributes, so that a page may forbid all styles but its own.

    >>> remove_styles('<svg><path d="M0 0" style="fill: none; stroke: red"/></svg>')
    '<svg stroke-linejoin="round"><path d="M0 0" fill="none" stroke="red"/></svg>'
    """
    plain = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)
    plain = re.sub(r' style="([^"]*)"', lambda found: style_to_attributes(found[1]), plain)
    return plain.replace("<svg", '<svg stroke-linejoin="round"', 1)


def style_to_attributes(style: str) -> str:
    """Converts the declarations of a style attribute to attributes of the element.

    >>> style_to_attributes("font: italic 10px Sans, serif; fill: none")
    ' font-size="10px" font-family="Sans, serif" fill="none"'
    """
    found = ""
    for declaration in filter(None, (part.strip() for part in style.split(";"))):
        name, value = (part.strip() for part in declaration.split(":", 1))
        short = re.search(r"([\d.]+px) (.+)", value) if name == "font" else None
        pairs = {name: value} if short is None else dict(zip(FONT, short.groups(), strict=True))
        found += "".join(f' {key}="{text}"' for key, text in pairs.items())
    return found
