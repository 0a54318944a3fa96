"""``keyhole study``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from keyhole.atomic import check_writable
from keyhole.cli.progress import watched
from keyhole.cli.shared import DataDir, Device, Json, at_once
from keyhole.errors import BadValue
from keyhole.studies import STUDIES, Study
from keyhole.studies.base import SHIPPED, Setting, find_study, folder_to_show, require_results
from keyhole.studies.show import lines as study_lines
from keyhole.studies.show import listing
from keyhole.studies.show import rows as study_rows
from keyhole.terminal import log, say_json, say_unwrapped


def study(
    name: Annotated[str, typer.Argument(help=f"The study: {', '.join(STUDIES)}.")],
    pieces: Annotated[
        list[str] | None,
        typer.Argument(help="Pieces, 'vit-small-*-p25' for several; default: all."),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the pieces, which are done, and which in part.")
    ] = False,
    shown: Annotated[
        bool, typer.Option("--show", help="Show results beside the paper's, and run nothing.")
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
    folder = results or (folder_to_show(found) if shown else Path("results") / name)
    chosen = found.chosen(pieces or [])
    with watched() as bar:
        setting = Setting(
            runs=runs or Path("runs") / f"study-{name}",
            data_dir=data_dir,
            device=device,
            progress=bar,
            victims_at_once=at_once(victims_at_once),
            changes={"victims": victims, "iterations": iterations, "parity": parity},
        )
        if listed:
            tell_pieces(found, listing(chosen, folder, setting), as_json=as_json)
            return
        for piece in [] if shown else found.run(chosen, setting, results=folder, within=within):
            log(f"done: {piece.name}")
    require_results(folder, found)
    if folder.parent == SHIPPED:
        log("note: these are the results that ship with keyhole; --results names other ones")
    if figures is not None:
        for path in drawn(found, folder, figures):
            log(f"drawn: {path}")
    if as_json:
        say_json({"study": name, "rows": study_rows(found, folder)})
    else:
        for line in study_lines(found, folder):
            say_unwrapped(line)


def tell_pieces(found: Study, pieces: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Prints what a study is made of."""
    if as_json:
        say_json({"study": found.name, "pieces": pieces})
        return
    say_unwrapped(f"{found.title}: {found.paper}")
    widest = max(len(piece["piece"]) for piece in pieces)
    for piece in pieces:
        mark = "done" if piece["done"] else "part" if piece["begun"] else "    "
        line = f"  {mark}  {piece['piece']:<{widest}}  {in_words(piece)}"
        say_unwrapped(line)


def in_words(piece: Mapping[str, Any]) -> str:
    """What a piece does: clients and attacks of an audit, or its own words."""
    if "attacks" not in piece:
        return str(piece["does"])
    clients = f"{piece['clients']} clients of {piece['batch_size']}"
    return f"{clients:<20} {', '.join(piece['attacks'])}"


def drawn(found: Study, results: Path, folder: Path) -> list[Path]:
    """The study's figures as pictures."""
    if found.draw is None:
        raise BadValue(f"study {found.name!r} has no figures to draw")
    check_writable(folder)
    return found.draw(results, folder)
