"""``keyhole leaderboard``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli.shared import Json
from keyhole.errors import BadValue
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import log, say_json, say_unwrapped

HERE = Path("results")
"""The folder of results that is read if none is named and it exists."""


def leaderboard(
    results: Annotated[
        list[Path] | None,
        typer.Argument(help="Results of audits: folders or JSON files; default: results/."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder of the page.")] = Path("site"),
    shipped: Annotated[
        bool, typer.Option(help="Show the measurements that come with Keyhole, too.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Write one page that ranks defenses by the worst share of images read.

    Regimes (model, data, weights, batch, local steps) and servers are ranked apart. A result of
    anybody counts if it is a valid JSON of an audit. A file that you name must be one; any other
    in a folder is left out, with one line.
    """
    places = results or ([HERE] if HERE.is_dir() else [])
    if out.exists() and not out.is_dir():
        raise BadValue(f"out: {out} is a file: name a folder")
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.measured import read_shipped
        from keyhole.auditing.submissions import read_submissions
        from keyhole.report.leaderboard import build_boards, write_leaderboard
    known = read_shipped() if shipped else ()
    found = read_submissions(places, known=[each.source for each in known])
    measured = [*known, *found.measurements]
    page = write_leaderboard(measured, out, left_out=found.left_out)
    if as_json:
        boards = build_boards(measured)
        rows = [
            {**line.about.to_json(), "rank": int(line.rank) if line.rank else None}
            for board in boards
            for line in (*board.judged, *board.unjudged)
        ]
        say_json({"page": str(page), "rows": rows, "left_out": list(found.left_out)})
        return
    for line in found.left_out:
        log(f"left out: {line}")
    boards = build_boards(measured)
    settings = sum(len(board.judged) + len(board.unjudged) for board in boards)
    say_unwrapped(
        f"{count(settings, 'setting')} in {count(len(boards), 'board')}, "
        f"{count(found.valid, 'result')} read, {len(found.left_out)} left out"
    )
    say_unwrapped(f"Page: {page}")


def count(number: int, noun: str) -> str:
    """A number with its noun.

    >>> count(1, "board"), count(2, "board")
    ('1 board', '2 boards')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"
