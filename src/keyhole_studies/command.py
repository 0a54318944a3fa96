"""``keyhole study``: what it takes. All else is imported when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli import (
    Address,
    CpusPerPiece,
    DataDir,
    Device,
    GpusPerPiece,
    Json,
    On,
    Pieces,
    PlaceRequest,
    Workers,
    read_victims_at_once,
)
from keyhole_studies import STUDIES


def study(
    name: Annotated[str | None, typer.Argument(help=f"The study: {', '.join(STUDIES)}.")] = None,
    experiments: Annotated[
        list[str] | None,
        typer.Argument(help="Experiments, 'vit-small-*-p25' for several; default: all."),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List the experiments, which are done, and which in part."),
    ] = False,
    shown: Annotated[
        bool, typer.Option("--show", help="Show results beside the paper's, and run nothing.")
    ] = False,
    written: Annotated[
        bool,
        typer.Option(
            "--write-docs",
            help="Write README's and docs' tables anew from results/, and run nothing.",
        ),
    ] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Also draw the paper's figures into this folder.")
    ] = None,
    results: Annotated[
        Path | None,
        typer.Option(
            help="Folder of results; default: results/NAME, and to show, those that ship."
        ),
    ] = None,
    victims: Annotated[
        int | None, typer.Option(help="Clients attacked in each experiment.")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of attacks, and rounds of an accuracy, at most.")
    ] = None,
    parity: Annotated[str | None, typer.Option(help="paper: attacks exactly as published.")] = None,
    victims_at_once: Annotated[str, typer.Option(help="Victims that share the device.")] = "auto",
    within: Annotated[
        float | None, typer.Option(help="Begin no experiment after so many seconds.")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the runs; default: runs/study-NAME.")
    ] = None,
    on: On = "local",
    address: Address = None,
    workers: Workers = None,
    cpus_per_piece: CpusPerPiece = 1,
    gpus_per_piece: GpusPerPiece = 0.0,
    pieces: Pieces = None,
    as_json: Json = False,
) -> None:
    """Reproduce a paper's tables, one experiment after another, and run none that has a result."""
    from keyhole_studies.command_run import Request, require_name, run_command, write_docs

    if written:
        write_docs(name, results or Path("results"))
        return
    name = require_name(name)
    run_command(
        Request(
            study=name,
            experiments=tuple(experiments or ()),
            listed=listed,
            shown=shown,
            figures=figures,
            results=results,
            within=within,
            device=device,
            data_dir=data_dir,
            runs=runs or Path("runs") / f"study-{name}",
            victims_at_once=read_victims_at_once(victims_at_once),
            changes={"victims": victims, "iterations": iterations, "parity": parity},
            as_json=as_json,
            place=PlaceRequest(on, address, workers, cpus_per_piece, gpus_per_piece, pieces),
        )
    )
