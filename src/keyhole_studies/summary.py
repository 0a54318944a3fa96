"""What of a paper was run, and how much of it agrees: the end of ``keyhole study ID --show``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from keyhole_studies.base import Experiment, Study
from keyhole_studies.comparisons import TOLERANCES, Comparison
from keyhole_studies.result_files import read_result
from keyhole_studies.tables import format_table

NOT_YET = "not run yet"


@dataclass(frozen=True)
class Cell:
    """One experiment of a study.

    Args:
        experiment: The experiment.
        ran: Whether it has a result.
        figures: The paper's figures beside ours; without a result, there are none.
        explained: Which of the experiments that explain it have results.
    """

    experiment: Experiment
    ran: bool
    figures: tuple[Comparison, ...]
    explained: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        """Whether every figure is within its tolerance."""
        return all(figure.agrees for figure in self.figures)

    @property
    def verdict(self) -> str:
        """``agrees``, ``explained``, ``differs``, ``no figure of the paper`` or ``not run``."""
        if not self.ran:
            return "not run"
        if not self.figures:
            return "no figure of the paper"
        return "agrees" if self.agrees else "explained" if self.explained else "differs"


def read_cells(study: Study, results: Path) -> list[Cell]:
    """All experiments of a study, with and without results."""
    cells = []
    for experiment in study.experiments:
        known = read_result(results, experiment.name)
        figures = () if known is None else tuple(experiment.compare(study, known))
        reasons = [n for n in experiment.explained_by if read_result(results, n) is not None]
        cells.append(Cell(experiment, known is not None, figures, tuple(reasons)))
    return cells


def format_summary(study: Study, results: Path) -> Iterator[str]:
    """What was not run and why, what differs from the paper and why, and a line that counts."""
    cells = read_cells(study, results)
    waiting = [cell for cell in cells if not cell.ran]
    rows = [
        [cell.experiment.name, cell.experiment.figure, words(cell.experiment)] for cell in waiting
    ]
    yield from format_wide("Not run", ("cell", "figure", "what it does"), rows)
    rows = [
        [cell.experiment.name, describe_difference(cell), explain(cell)]
        for cell in cells
        if cell.verdict in ("differs", "explained")
    ]
    head = ("cell", "ours (the paper's), where they differ", "explained by")
    yield from format_wide("Outside the tolerance", head, rows)
    yield ""
    yield count_cells(cells)


def format_wide(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table of words, its lines without spaces at their end."""
    for line in format_table(title, head, rows, left=len(head)):
        yield line.rstrip()


def words(experiment: Experiment) -> str:
    """What an experiment does, in a line."""
    about = experiment.describe()
    if "does" in about:
        return str(about["does"])
    return f"{about['clients']} clients of {about['batch_size']}: {', '.join(about['attacks'])}"


def describe_difference(cell: Cell) -> str:
    return ", ".join(str(figure) for figure in cell.figures if not figure.agrees)


def explain(cell: Cell) -> str:
    """The experiments that explain a difference; empty: none does."""
    because = cell.experiment.explained_by
    return "; ".join(f"{name}: {because[name]}" for name in cell.explained)


def count_cells(cells: list[Cell]) -> str:
    """How many cells agree, are explained, differ, and were not run.

    >>> count_cells([]).partition(" (")[0]
    '0 of 0 cells with figures of the paper within tolerance'
    """
    verdicts = Counter(cell.verdict for cell in cells)
    compared = verdicts["agrees"] + verdicts["explained"] + verdicts["differs"]
    bounds = f".{100 * TOLERANCES['ssim']:02.0f} SSIM, {TOLERANCES['psnr']:g} dB"
    bounds += f", {TOLERANCES['points']:g} points"
    parts = [
        f"{verdicts['agrees']} of {compared} cells with figures of the paper within tolerance"
        f" ({bounds}), {verdicts['explained']} explained"
    ]
    if verdicts["differs"]:
        parts.append(f"{verdicts['differs']} neither")
    if verdicts["no figure of the paper"]:
        parts.append(f"{verdicts['no figure of the paper']} without a figure of the paper")
    text = ", ".join(parts)
    waits = Counter(cell.experiment.waits or NOT_YET for cell in cells if not cell.ran)
    if waits:
        why = ", ".join(f"{number} {reason}" for reason, number in waits.items())
        text += f"; {waits.total()} not run ({why})"
    return text
