"""Tables of text, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from keyhole.studies.base import Study, read_result

Results = Mapping[str, dict[str, Any]]
"""What was found, by the names of pieces."""
Cell = float | str | None


def measured(study: Study, results: Path) -> Results:
    """The results that a folder holds."""
    read = ((piece.name, read_result(results, piece)) for piece in study.pieces)
    return {name: result for name, result in read if result is not None}


def paired(ours: Iterable[float], paper: Iterable[float | None], digits: int = 1) -> list[str]:
    """``ours (the paper's)``."""
    left, right = list(ours), list(paper)
    right += [None] * (len(left) - len(right))
    return [
        f"{o:.{digits}f}" + ("" if p is None else f" ({p:g})")
        for o, p in zip(left, right, strict=True)
    ]


def table(
    title: str, head: Iterable[str], rows: list[list[Cell]] | list[list[Any]]
) -> Iterator[str]:
    """Columns of equal width under a title; nothing without rows."""
    if not rows:
        return
    cells = [list(head), *([shown(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    yield ""
    yield title
    for row in cells:
        first = row[0].ljust(widths[0])
        yield "  ".join(
            [f"  {first}", *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))]
        )


def shown(cell: Cell) -> str:
    return cell if isinstance(cell, str) else "" if cell is None else f"{cell:.1f}"
