"""``keyhole study``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from keyhole.cli.shared import DataDir, Device, Json, at_once, watched
from keyhole.studies import STUDIES, Study
from keyhole.studies.base import find_study, require_results
from keyhole.studies.show import lines as study_lines
from keyhole.studies.show import listing
from keyhole.studies.show import rows as study_rows


def study(
    name: Annotated[str, typer.Argument(help="The study: dia.")],
    pieces: Annotated[
        list[str] | None, typer.Argument(help="Pieces to run, 'vit-small*' for several.")
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the pieces, and which are done.")
    ] = False,
    shown: Annotated[
        bool, typer.Option("--show", help="Show ours beside the paper's, from the results.")
    ] = False,
    results: Annotated[
        Path | None, typer.Option(help="Folder of results; default: results/NAME.")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="Clients attacked in each piece.")] = None,
    iterations: Annotated[int | None, typer.Option(help="Iterations, at most.")] = None,
    parity: Annotated[str | None, typer.Option(help="paper: attacks exactly as published.")] = None,
    victims_at_once: Annotated[str, typer.Option(help="Victims that share the device.")] = "auto",
    within: Annotated[
        float | None, typer.Option(help="Begin no piece after so many seconds.")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    runs: Annotated[
        Path | None, typer.Option(help="Folder of the runs; default: runs/study-NAME.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Reproduce a paper's tables, piece by piece; pieces that have results are not run again."""
    found = find_study(name, STUDIES)
    folder = results or Path("results") / name
    chosen = found.chosen(pieces or [])
    if listed:
        tell_pieces(found, folder, as_json=as_json)
        return
    if not shown:
        with watched() as bar:
            for piece in found.run(
                chosen,
                results=folder,
                runs=runs or Path("runs") / f"study-{name}",
                data_dir=data_dir,
                device=device,
                progress=bar,
                within=within,
                victims_at_once=at_once(victims_at_once),
                victims=victims,
                iterations=iterations,
                parity=parity,
            ):
                print(f"done: {piece.name}", file=sys.stderr)
    require_results(folder, found)
    if as_json:
        typer.echo(json.dumps({"study": name, "rows": study_rows(found, folder)}))
    else:
        for line in study_lines(found, folder):
            typer.echo(line)


def tell_pieces(found: Study, folder: Path, *, as_json: bool) -> None:
    """Prints what a study is made of."""
    pieces = listing(found, folder)
    if as_json:
        typer.echo(json.dumps({"study": found.name, "pieces": pieces}))
        return
    console = Console()
    console.print(f"{found.title}: {found.paper}", highlight=False)
    for piece in pieces:
        mark = "done" if piece["done"] else "    "
        clients = f"{piece['clients']} clients of {piece['batch_size']}"
        attacks = ", ".join(piece["attacks"])
        line = f"  {mark}  {piece['piece']:<28} {clients:<20} {attacks}"
        console.print(line, highlight=False, markup=False, soft_wrap=True)
