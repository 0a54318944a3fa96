"""What was measured beside the bounds, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole_studies.base import Study
from keyhole_studies.result_files import read_results
from keyhole_studies.tables import format_table

BOUNDS = ("printed", "corrected", "doubled", "unrolled")


def format_tables(study: Study, results: Path) -> Iterator[str]:
    """The last gap beside every bound; the least factor between them; where a bound is broken."""
    found = read_results(results, [experiment.name for experiment in study.experiments])
    yield f"{study.paper}, Theorem 1: F(w_T) - F* on logistic regression, and bounds on it"
    head = ("piece", "beta", "steps", "gap", *(f"{bound} (least factor)" for bound in BOUNDS))
    rows = [format_row(result) for result in found.values()]
    title = "At the last round; ! marks a bound that was broken, and when"
    yield from format_table(title, head, rows)
    yield ""
    yield "  Rates are those of the corrected theorem; in printed-*, the paper's own."


def format_row(result: Mapping[str, Any]) -> list[str]:
    first, last = result["beta"]["first"], result["beta"]["last"]
    beta = f"{first:.3g}" if first == last else f"{first:.3g} to {last:.3g}"
    cells = [result["piece"], beta, str(result["steps"][-1]), f"{result['gap']['mean'][-1]:.4f}"]
    for bound in BOUNDS:
        if bound not in result["bounds"]:
            cells.append("-")
            continue
        broken = result["broken_after_rounds"][bound]
        factor = result["least_looseness"][bound]
        words = f"({factor:.3g})" if broken is None else f"({factor:.3g}) ! round {broken}"
        cells.append(f"{result['bounds'][bound][-1]:.3g} {words}")
    return cells
