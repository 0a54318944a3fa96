"""Options that several commands have in common."""

from __future__ import annotations

from typing import Annotated

import typer

from keyhole.errors import BadValue

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Wide = Annotated[
    bool, typer.Option("--wide", help="Show 95% intervals, however narrow the terminal is.")
]
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
Mean = Annotated[
    str | None,
    typer.Option(help="Of pixels in 0..1, as clients feed their model: 0.5, or 0.49,0.48,0.45."),
]
Std = Annotated[str | None, typer.Option(help="With --mean: standard deviations, likewise.")]
Seed = Annotated[int | None, typer.Option(help="Seed of everything.")]


def at_once(text: str) -> int | None:
    """How many victims share the device: a number, or None for as many as fit."""
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise BadValue(f"victims-at-once: it is auto or a positive number, got {text!r}")
    return int(text)
