"""What of a paper was run, and how much of it agrees: the end of ``keyhole study ID --show``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keyhole.progress import NullProgress
from keyhole_studies.base import Experiment, Study, StudyContext
from keyhole_studies.comparisons import TOLERANCES, Comparison
from keyhole_studies.result_files import read_result
from keyhole_studies.tables import format_table

NOT_YET = "not run yet"

AS_DESCRIBED = StudyContext(Path("runs"), None, "auto", NullProgress())
"""Cells as they are described, with nothing changed on the command line."""


@dataclass(frozen=True)
class Cell:
    """One experiment of a study.

    Args:
        experiment: The experiment.
        ran: Whether it has a result.
        figures: The paper's figures beside ours; without a result, there are none.
        explained: The experiments whose results explain it; see :func:`find_explanations`.
        gap: What its result lacks, ``part (...)`` or ``stale (...)``; empty: nothing.
        rests_on: How many images, drawings or members.
        found: What was found, where the paper has no figure.
    """

    experiment: Experiment
    ran: bool
    figures: tuple[Comparison, ...]
    explained: tuple[str, ...]
    gap: str = ""
    rests_on: str = ""
    found: str = ""

    @property
    def agrees(self) -> bool:
        """Whether every figure is within its tolerance."""
        return all(figure.agrees for figure in self.figures)

    @property
    def verdict(self) -> str:
        """``agrees``, ``explained``, ``differs``, ``no figure of the paper``, ``part``, ``stale``
        or ``not run``: a result that is not whole agrees with nothing yet."""
        if not self.ran:
            return "not run"
        if self.gap:
            return self.gap.partition(" ")[0]
        if not self.figures:
            return "no figure of the paper"
        return "agrees" if self.agrees else "explained" if self.explained else "differs"


def read_cells(study: Study, results: Path) -> list[Cell]:
    """All experiments of a study, with and without results."""
    return [read_cell(study, experiment, results) for experiment in study.experiments]


def read_cell(study: Study, experiment: Experiment, results: Path) -> Cell:
    """One experiment, with what its result says and lacks, if there is one."""
    known = read_result(results, experiment.name)
    if known is None:
        return Cell(experiment, ran=False, figures=(), explained=())
    figures = tuple(experiment.compare(study, known))
    return Cell(
        experiment,
        ran=True,
        figures=figures,
        explained=find_explanations(study, experiment, figures, results),
        gap=experiment.find_gap(known, AS_DESCRIBED),
        rests_on=experiment.count_measured(known),
        found=experiment.tell(known),
    )


def find_explanations(
    study: Study, experiment: Experiment, figures: Sequence[Comparison], results: Path
) -> tuple[str, ...]:
    """The experiments that explain why figures are outside the tolerance; all of them, or none.

    A figure is explained where the same figure of another experiment agrees with the paper's, or
    differs by half as much: what an experiment changed was the reason, or much of it.

    Args:
        study: The study.
        experiment: Names those that may explain it.
        figures: Its figures beside the paper's.
        results: The folder of results.
    """
    differing = [figure for figure in figures if not figure.agrees]
    unexplained, names = set(differing), []
    for name in experiment.explained_by:
        known = read_result(results, name)
        if known is None:
            continue
        others = list(study.find(name).compare(study, known))
        here = {f for f in differing if any(f.is_explained_by(other) for other in others)}
        unexplained -= here
        names += [name] if here else []
    return () if unexplained else tuple(names)


def format_summary(study: Study, results: Path) -> Iterator[str]:
    """Every cell: what it rests on, how it stands, ours beside the paper's; and a count of all."""
    cells = read_cells(study, results)
    gaps = {cell.experiment.name: cell.gap for cell in cells if cell.gap}
    head = ("cell", "figure", "rests on", "state", "ours (the paper's), * outside the tolerance")
    rows = [
        [
            cell.experiment.name,
            cell.experiment.figure,
            cell.rests_on if cell.ran else "-",
            cell.verdict,
            "; ".join(filter(None, (describe_result(cell), describe_reason(cell, gaps)))),
        ]
        for cell in cells
    ]
    for line in format_table("Cell by cell", head, rows, left=len(head)):
        yield line.rstrip()
    yield ""
    yield count_cells(cells)


def summarise(study: Study, results: Path) -> dict[str, Any]:
    """The same for machines: the line that counts, and each cell's verdict and gap."""
    cells = read_cells(study, results)
    each = {cell.experiment.name: {"verdict": cell.verdict, "gap": cell.gap} for cell in cells}
    return {"line": count_cells(cells), "cells": each}


def words(experiment: Experiment) -> str:
    """What an experiment does, in a line."""
    about = experiment.describe()
    if "does" in about:
        return str(about["does"])
    return f"{about['clients']} clients of {about['batch_size']}: {', '.join(about['attacks'])}"


def describe_result(cell: Cell) -> str:
    """Ours beside the paper's figures; without any, what was found, or what would be done."""
    if not cell.ran:
        return words(cell.experiment)
    figures = [f"{figure}{'' if figure.agrees else ' *'}" for figure in cell.figures]
    return ", ".join(figures) or cell.found


def describe_reason(cell: Cell, gaps: Mapping[str, str]) -> str:
    """Why a cell has no result, what its result lacks, or what explains a difference.

    Args:
        cell: The cell.
        gaps: What results lack, by the names of their experiments.
    """
    if not cell.ran:
        return cell.experiment.waits or NOT_YET
    if cell.verdict != "explained":
        return cell.gap
    because = cell.experiment.explained_by
    told = {name: f": {gaps[name]}" if name in gaps else "" for name in cell.explained}
    reasons = "; ".join(f"{name}: {because[name]}{lacks}" for name, lacks in told.items())
    return f"explained by {reasons}"


def count_cells(cells: list[Cell]) -> str:
    """How many cells agree, are explained, differ, are not whole, and were not run.

    >>> count_cells([]).partition(" (")[0]
    '0 of 0 cells with figures of the paper within tolerance'
    """
    verdicts = Counter(cell.verdict for cell in cells)
    compared = verdicts["agrees"] + verdicts["explained"] + verdicts["differs"]
    bounds = f".{100 * TOLERANCES['ssim']:02.0f} SSIM, {TOLERANCES['psnr']:g} dB"
    bounds += f", {TOLERANCES['points']:g} points"
    gaps = {cell.experiment.name for cell in cells if cell.gap}
    partly = sum(c.verdict == "explained" and not gaps.isdisjoint(c.explained) for c in cells)
    parts = [
        f"{verdicts['agrees']} of {compared} cells with figures of the paper within tolerance"
        f" ({bounds}), {verdicts['explained']} explained"
        f"{f' ({partly} by cells that are not whole)' if partly else ''}"
    ]
    if verdicts["differs"]:
        parts.append(f"{verdicts['differs']} neither")
    if verdicts["no figure of the paper"]:
        parts.append(f"{verdicts['no figure of the paper']} without a figure of the paper")
    text = ", ".join(parts)
    unfinished = [
        f"{verdicts[kind]} {words}"
        for kind, words in (("part", "in part"), ("stale", "stale"))
        if verdicts[kind]
    ]
    if unfinished:
        text += f"; {', '.join(unfinished)}"
    waits = Counter(cell.experiment.waits or NOT_YET for cell in cells if not cell.ran)
    if waits:
        why = ", ".join(f"{number} {reason}" for reason, number in waits.items())
        yet = waits.total() == waits[NOT_YET]
        text += f"; {waits.total()} {NOT_YET if yet else f'not run ({why})'}"
    return text
