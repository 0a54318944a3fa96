"""``keyhole plan``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole.auditing.sweep import read_sweep
from keyhole.cli.early_checks import check_stage
from keyhole.cli.places import CpusPerPiece, PlaceRequest
from keyhole.cli.progress import format_duration, show_progress
from keyhole.cli.shared import DataDir, Device, Json
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import TextTable, say_json, say_table, say_unwrapped

if TYPE_CHECKING:
    from keyhole.scale.forecast import PieceForecast

SHOWN = 60
"""Pieces that are listed without --all."""


def plan(
    plan_file: Annotated[
        Path, typer.Argument(metavar="PLAN.toml", help="A plan with [[stage]] tables.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the runs; pieces are in it.")] = Path("runs"),
    pieces: Annotated[
        str | None, typer.Option(help="Folder or URL of pieces' results; default: runs/pieces.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Pieces at once, for the time.")] = 1,
    cpus_per_piece: CpusPerPiece = 1,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Measure pieces of which none is done.")
    ] = True,
    most: Annotated[
        int, typer.Option("--probes", min=1, help="Kinds of pieces to measure, at most.")
    ] = 8,
    every: Annotated[bool, typer.Option("--all", help="List all pieces of a long plan.")] = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show what a plan would run: its pieces, which are done, and the time of the rest.

    Times and memory of what is to do come from pieces like it, or else from a probe of one or two
    victims and few iterations.
    """
    sweep = read_sweep(plan_file)
    for stage in sweep.plans[0].stage:
        check_stage(stage, data_dir)
    request = PlaceRequest(cpus=cpus_per_piece, pieces=pieces)
    with INTERRUPTS.leaving_at_once():
        from keyhole.scale.audit_run import list_audit_pieces
        from keyhole.scale.forecast import find_unmeasured, forecast_pieces
        from keyhole.scale.parts import check_stages
        from keyhole.scale.probe import Pace, measure_all
    store = request.open_store(out / "run")
    listed = list_audit_pieces(sweep)
    check_stages([each.stage for each in listed])
    paces: dict[str, Pace] = {}
    if probe:
        with show_progress() as bar:
            machine = request.make_machine(device, data_dir)
            todo = [(each.stage, each.seed) for each in find_unmeasured(listed, store)]
            paces = measure_all(todo, machine, most, bar)
    found = forecast_pieces(listed, store, paces)
    total = summarise_forecast(found, workers)
    if as_json:
        say_json({**total, "pieces": [each.to_json() for each in found]})
        return
    print_forecast(found, every=every)
    for line in describe_total(total):
        say_unwrapped(line)


def summarise_forecast(found: Sequence[PieceForecast], workers: int) -> dict[str, Any]:
    """Numbers of pieces, and the time and memory of those to do."""
    todo = [each for each in found if each.status != "done"]
    known = [each.seconds for each in todo if each.seconds is not None]
    memory = [each.peak_mb for each in todo if each.peak_mb is not None]
    longest = max(known, default=0.0)
    return {
        "total": len(found),
        "done": len(found) - len(todo),
        "begun": sum(each.status == "begun" for each in found),
        "workers": workers,
        "seconds": max(longest, sum(known) / workers) if known or not todo else None,
        "unknown": len(todo) - len(known),
        "peak_mb": max(memory, default=None),
    }


def print_forecast(found: Sequence[PieceForecast], *, every: bool) -> None:
    """Prints a table of the pieces."""
    table = TextTable()
    for name in ("piece", "status", "time", "memory", "as"):
        table.add_column(name, fold=name == "piece", right=name in ("time", "memory"), at_least=5)
    shown = found if every else found[:SHOWN]
    for each in shown:
        memory = "" if each.peak_mb is None else f"{each.peak_mb / 1000:.1f} GB"
        time = "" if each.seconds is None else format_seconds(each.seconds)
        table.add_row(each.piece.full_title, each.status, time, memory, each.source)
    say_table(table)
    if len(shown) < len(found):
        say_unwrapped(f"and {len(found) - len(shown)} more: --all lists them")


def format_seconds(seconds: float) -> str:
    """Seconds with a digit, or hours and minutes.

    >>> format_seconds(2.345), format_seconds(3723.4)
    ('2.3 s', '1:02:03')
    """
    return f"{seconds:.1f} s" if seconds < 60 else format_duration(seconds)


def describe_total(total: dict[str, Any]) -> list[str]:
    """The numbers in words."""
    begun = f", {total['begun']} of the others begun" if total["begun"] else ""
    lines = [f"Pieces:   {total['total']}, {total['done']} done{begun}"]
    if total["seconds"] is not None:
        workers = f"{total['workers']} worker{'' if total['workers'] == 1 else 's'}"
        unknown = f", without {total['unknown']} not measured" if total["unknown"] else ""
        lines.append(f"Time:     about {format_seconds(total['seconds'])} on {workers}{unknown}")
    if total["peak_mb"] is not None:
        lines.append(f"Memory:   about {total['peak_mb'] / 1000:.1f} GB for each worker")
    return lines
