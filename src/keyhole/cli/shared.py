"""Options that several commands have in common."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from keyhole.errors import BadValue
from keyhole.spelling import shorten

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show 95% intervals on narrow terminals, too.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataDir = Annotated[str | None, typer.Option(help="Folder of data sets; default: KEYHOLE_DATA.")]
Out = Annotated[Path | None, typer.Option(help="Run folder; default: under runs/.")]
Frontier = Annotated[
    Path | None,
    typer.Option("--frontier", help="Folder of a frontier, by which the report says what to do."),
]
Fresh = Annotated[bool, typer.Option("--fresh", help="Replace an earlier run there.")]


def read_victims_at_once(text: str) -> int | None:
    """Reads how many victims are attacked at once: a number, or None for as many as fit.

    Args:
        text: ``auto``, or a number.
    """
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadValue(f"victims-at-once: give auto or a positive number, got {text!r}")
    return int(text)


def read_seeds(seed: int | None, seeds: Sequence[str] | None) -> tuple[int, ...] | None:
    """Reads ``0,1,2``, from one option or several; None if neither option is given."""
    if seeds is None:
        return None if seed is None else (seed,)
    if seed is not None:
        raise BadValue("seeds: give --seed or --seeds, not both")
    text = ",".join(seeds)
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise BadValue(f"seeds: write them as 0,1,2, got {shorten(text)}")
    return tuple(int(part) for part in parts)
