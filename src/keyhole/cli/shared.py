"""What several commands have in common: options, progress bars."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress

from keyhole.errors import BadValue

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
DataDir = Annotated[str | None, typer.Option(help="Folder of data sets; default: KEYHOLE_DATA.")]

Source = Annotated[str | None, typer.Option(help="The data set, by name or folder.")]
Model = Annotated[str | None, typer.Option(help="The model, by name.")]
Optimiser = Annotated[str | None, typer.Option(help="sgd or adam.")]
Momentum = Annotated[float | None, typer.Option(help="Of SGD.")]
Clip = Annotated[float | None, typer.Option(help="Greatest norm of a step's gradient.")]
Augment = Annotated[bool, typer.Option("--augment", help="Flip and shift images.")]
ClientMode = Annotated[str | None, typer.Option(help="train, eval or frozen-norm.")]
ImageSize = Annotated[str | None, typer.Option(help="Pixels: 224, or 112x92.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything.")]


class Bar:
    """Shows an audit's progress, with the time that remains, on standard error."""

    def __init__(self, bar: RichProgress) -> None:
        self.bar = bar
        self.task = bar.add_task("preparing", total=None)
        self.attack = bar.add_task("iterations", total=None, visible=False)

    def begin(self, total: int) -> None:
        self.bar.update(self.task, total=total)

    def show(self, what: str) -> None:
        self.bar.update(self.task, description=what)
        self.bar.reset(self.attack, visible=False)

    def advance(self, units: int) -> None:
        self.bar.advance(self.task, units)

    def iterate(self, done: int, total: int, text: str) -> None:
        self.bar.update(
            self.attack, completed=done, total=total, description=f"  {text}", visible=True
        )


@contextmanager
def watched() -> Iterator[Bar]:
    """A progress bar that vanishes when the work is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    hidden = not console.is_terminal
    with RichProgress(*columns, console=console, transient=True, disable=hidden) as bar:
        yield Bar(bar)


def at_once(text: str) -> int | None:
    """How many victims share the device: a number, or None for as many as fit."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadValue(f"victims-at-once: it is auto or a positive number, got {text!r}")
    return int(text)
