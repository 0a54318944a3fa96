"""Tables of text: the one printer that all studies use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from keyhole_studies.base import Study
from keyhole_studies.result_files import Results, read_results

Cell = float | str | None
"""A text, a number that is shown with one digit, or nothing."""


def combine_tables(
    *tables: Callable[[Study, Results], Iterator[str]],
) -> Callable[[Study, Path], Iterator[str]]:
    """What writes a study's tables below each other, without those of which nothing was measured.

    Args:
        tables: Each writes one table, or several, of a study and its results.
    """

    def format_tables(study: Study, results: Path) -> Iterator[str]:
        yield f"{study.paper}: ours (the paper's)"
        found = read_results(results, [experiment.name for experiment in study.experiments])
        for format_one in tables:
            yield from format_one(study, found)

    return format_tables


def format_table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    left: int = 1,
    widths: Sequence[int] = (),
    indent: str = "  ",
    gap: str = "  ",
) -> Iterator[str]:
    """Lines of a table, columns as wide as their widest cell; nothing where it has no rows.

    Args:
        title: Stands above the table, after an empty line; empty: neither is written.
        head: Names of the columns.
        rows: Cells, as many in each row as there are columns.
        left: The first so many columns are aligned to the left, the others to the right.
        widths: Fixed widths of the columns, in place of those of their cells.
        indent: Stands before each row.
        gap: Stands between columns.
    """
    if not rows:
        return
    cells = [list(head), *([format_cell(cell) for cell in row] for row in rows)]
    widths = widths or [max(len(row[i]) for row in cells) for i in range(len(head))]
    if title:
        yield ""
        yield title
    for row in cells:
        padded = [
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield indent + gap.join(padded)


def format_cell(cell: Cell) -> str:
    """
    >>> format_cell(0.25), format_cell("a"), format_cell(None)
    ('0.2', 'a', '')
    """
    if isinstance(cell, str):
        return cell
    return "" if cell is None else f"{cell:.1f}"


def format_pairs(
    ours: Iterable[float], paper: Iterable[float | None], digits: int = 1
) -> list[str]:
    """``ours (the paper's)``; the paper may report fewer values than we do.

    >>> format_pairs([1.0, 2.0], [1.5])
    ['1.0 (1.5)', '2.0']
    """
    left, right = list(ours), list(paper)
    right += [None] * (len(left) - len(right))
    return [
        f"{own:.{digits}f}" + ("" if theirs is None else f" ({theirs:g})")
        for own, theirs in zip(left, right, strict=True)
    ]
