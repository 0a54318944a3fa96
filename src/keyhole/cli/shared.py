"""Options that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.errors import BadValue

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
