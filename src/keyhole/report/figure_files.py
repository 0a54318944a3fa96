"""Writes figures of a result as files: PNG for slides, PDF for papers, SVG to edit."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import Any, Literal

from torch import Tensor

from keyhole.atomic import write_bytes
from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense
from keyhole.auditing.membership_result import MembershipResult
from keyhole.auditing.pictures import victims_of
from keyhole.auditing.results import AuditResult
from keyhole.auditing.sections import Section
from keyhole.auditing.store import Store
from keyhole.errors import BadValue
from keyhole.report import membership_view, view
from keyhole.report.drawing import (
    StripRow,
    draw_losses,
    draw_rocs,
    draw_strip,
    draw_sweeps,
    escape_mathtext,
)
from keyhole.report.figures import LOSS_SIZE, ROC_SIZE, SWEEP_SIZE, figure_style
from keyhole.report.sweep_view import SIZE as PARAMETER_SIZE
from keyhole.report.sweep_view import draw_parameter
from keyhole.spelling import shorten

FORMATS = ("png", "pdf", "svg")
INK = "#1d2129"
CELL = 1.15
"""Width and height of a picture in a strip, in inches."""
COLUMNS = 8
"""The most pictures in a row."""
LABEL = 24
"""Letters in a line of a row's label."""
DPI = 200


@dataclass(frozen=True)
class FigureFile:
    """One figure: what its files are called, its title, and what is drawn on it."""

    name: str
    title: str
    size: tuple[float, float]
    draw: Callable[[Any], None]
    layout: Literal["constrained", "compressed"] = "constrained"
    """How matplotlib places axes; ``compressed`` puts pictures of a fixed shape close together."""


def write_figures(
    result: AuditResult | MembershipResult,
    folder: str | Path,
    formats: Sequence[str] = FORMATS,
) -> list[Path]:
    """Writes every figure of a result; returns the files.

    Of an audit: strips of originals and reconstructions for each setting, sweeps over a defense's
    strength, loss curves of iterative attacks, heat maps. Of a membership run: ROC curves.

    Args:
        result: What was found.
        folder: Where the files go; it is created if it does not exist.
        formats: Any of ``png``, ``pdf`` and ``svg``.
    """
    unknown = [each for each in formats if each not in FORMATS]
    if unknown or not formats:
        got = shorten(unknown[0]) if unknown else "nothing"
        raise BadValue(f"format: it is any of {', '.join(FORMATS)}, got {got}")
    found = audit_figures(result) if isinstance(result, AuditResult) else roc_figures(result)
    return [
        write_bytes(Path(folder) / f"{figure.name}.{kind}", content)
        for figure in with_unique_names(found)
        for kind, content in save_figure(figure, formats)
    ]


def save_figure(figure: FigureFile, formats: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Draws a figure on white in each of the formats; its files are reproducible."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    metadata = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
    with rc_context(figure_style(INK)):
        drawn = Figure(figsize=figure.size, layout=figure.layout, facecolor="white")
        figure.draw(drawn)
        drawn.suptitle(escape_mathtext(figure.title), fontsize=9)
        drawn.draw_without_rendering()
        drawn.set_layout_engine("none")  # found once: all formats look the same
        for kind in formats:
            buffer = io.BytesIO()
            about = metadata.get(kind, {})
            drawn.savefig(buffer, format=kind, dpi=DPI, bbox_inches="tight", metadata=about)
            yield kind, buffer.getvalue()


def audit_figures(result: AuditResult) -> Iterator[FigureFile]:
    """Lists all figures of an audit."""
    for table in result.swept:
        yield FigureFile(
            name_file("parameter", table.parameter),
            f"{result.title}: {table.parameter}, the worst attacker at each value",
            PARAMETER_SIZE,
            partial(draw_parameter, table=table),
        )
    for section in result.sections:
        yield from strip_figures(section, result.store)
        for (defense, parameter), lines in view.find_sweeps(section).items():
            yield sweep_figure(section, defense, parameter, lines)
        for finding in section.findings:
            if finding.loss_curves:
                yield loss_figure(finding)
        if result.store is not None:
            yield from heat_figures(section, result.store)


def strip_figures(section: Section, store: Store | None) -> Iterator[FigureFile]:
    """Lists one strip for each defense: the originals, and below them what each attacker saw.

    If a plan attacks one setting twice, attackers of other images get a strip of their own.
    """
    if store is None:
        return
    groups: dict[tuple[str, bytes], list[StripRow]] = {}
    for finding in section.findings:
        pictures = store.pictures(finding.key)
        if "seen" not in pictures:
            continue
        truth = pictures["truth"][:COLUMNS] if "truth" in pictures else None
        originals = b"" if truth is None else truth.numpy().tobytes()
        rows = groups.setdefault((label_defense(finding.defense), originals), [])
        if truth is not None and not rows:
            rows.append(build_strip_row("original", truth, ()))
        rows.append(build_seen_row(finding, pictures))
    for (defense, _), rows in groups.items():
        name = name_file("strip", section.model, section.data, defense)
        title = f"{section.model} on {section.data}, {describe_defense(defense)}"
        yield strip_figure(name, title, rows)


def strip_figure(name: str, title: str, rows: Sequence[StripRow]) -> FigureFile:
    width = max(len(row.pictures) for row in rows)
    size = (CELL * width + 1.6, CELL * len(rows) + 0.3)
    return FigureFile(name, title, size, partial(draw_strip, rows=rows), layout="compressed")


def build_seen_row(finding: Finding, pictures: Mapping[str, Tensor]) -> StripRow:
    """Builds a row of what one attacker saw, with scores or the attacker's confidence."""
    seen, victims = pictures["seen"][:COLUMNS], victims_of(pictures)[:COLUMNS]
    wrapped = wrap(label_attack(finding), LABEL, max_lines=3, placeholder=" ...")
    label = "\n".join([*wrapped, f"({finding.attacker})"])
    captions = [view.caption_picture(finding, victim) for victim in victims]
    return build_strip_row(label, seen, captions)


def build_strip_row(label: str, pictures: Tensor, captions: Sequence[str]) -> StripRow:
    """Builds a row of some of the pictures ``[n, C, H, W]``; a missing caption is empty."""
    shown = tuple(pictures[:COLUMNS])
    padded = (*captions, *[""] * len(shown))[: len(shown)]
    return StripRow(label, shown, padded)


def sweep_figure(
    section: Section, defense: str, parameter: str, lines: Sequence[view.Sweep]
) -> FigureFile:
    return FigureFile(
        name_file("sweep", section.model, section.data, defense, parameter),
        f"{section.model} on {section.data}\n{section.facts}",
        SWEEP_SIZE,
        partial(draw_sweeps, section=section, lines=lines),
    )


def loss_figure(finding: Finding) -> FigureFile:
    defense, attack = label_defense(finding.defense), label_attack(finding)
    return FigureFile(
        name_file("loss", finding.model, finding.data, defense, attack, finding.attacker),
        f"{attack} ({finding.attacker})\n{finding.model} on {finding.data}, "
        f"{describe_defense(defense)}",
        LOSS_SIZE,
        partial(draw_losses, curves=finding.loss_curves),
    )


def heat_figures(section: Section, store: Store) -> Iterator[FigureFile]:
    """Lists what the uploaded networks look at, if defenses on updates were tried."""
    sheet = view.read_heat_maps(section, store)
    rows = [StripRow(name, tuple(row[:COLUMNS]), ("",) * len(row)) for name, row in sheet.items()]
    if rows:
        title = f"Grad-CAM of the last convolution, {section.model} on {section.data}"
        yield strip_figure(name_file("heat", section.model, section.data), title, rows)


def roc_figures(result: MembershipResult) -> Iterator[FigureFile]:
    """Lists the ROC curves of each trial of a membership run."""
    plan = result.plan
    for trial in result.trials:
        name = membership_view.label_trial(trial)
        yield FigureFile(
            name_file("roc", plan.model, plan.data, name, f"{trial.epochs}-epochs"),
            f"{plan.model} on {plan.data}, {name}, {trial.epochs} epochs",
            ROC_SIZE,
            partial(draw_rocs, trial=trial, others=result.others),
        )


def describe_defense(label: str) -> str:
    """Returns what a title calls a defense."""
    return "no defense" if label == "none" else label


def name_file(*words: str) -> str:
    """Joins words to a file name that every system accepts.

    >>> name_file("strip", "timm:deit", "data/faces", "gaussian(sigma=0.01)")
    'strip-timm-deit-data-faces-gaussian-sigma-0.01'
    """
    return re.sub(r"[^a-zA-Z0-9.]+", "-", "-".join(words)).strip("-.").lower()[:120]


def with_unique_names(figures: Iterator[FigureFile]) -> Iterator[FigureFile]:
    """Renames figures so that the second of a name is called ``NAME-2``."""
    seen: dict[str, int] = {}
    for figure in figures:
        seen[figure.name] = count = seen.get(figure.name, 0) + 1
        name = figure.name if count == 1 else f"{figure.name}-{count}"
        yield replace(figure, name=name)
