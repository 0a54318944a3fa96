"""``keyhole frontier``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from keyhole.cli.early_checks import check_frontier
from keyhole.cli.places import (
    LOCAL,
    Address,
    CpusPerPiece,
    GpusPerPiece,
    On,
    Pieces,
    PlaceRequest,
    Workers,
)
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Json, Out
from keyhole.errors import BadValue
from keyhole.frontier.plan import QUICK, FrontierPlan
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.terminal import say_json, say_unwrapped

QUICK_WORKERS = 2


@takes_fields_of(FrontierPlan, without=("defense", "seed", "together"))
def frontier(
    *,
    given: Given,
    quick: Annotated[
        bool, typer.Option("--quick", help="Built-in images, a few minutes on two cores.")
    ] = False,
    on: On = LOCAL,
    address: Address = None,
    workers: Workers = None,
    cpus_per_piece: CpusPerPiece = 1,
    gpus_per_piece: GpusPerPiece = 0.0,
    pieces: Pieces = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Find which defense to use: train under each, attack each, and weigh accuracy against privacy.

    Each setting is trained with every seed, and clients of the first and of the last round are
    attacked by everyone whose attack applies. Says which settings no attacker broke, what the
    mildest of them cost, and what was not tried. The same command continues an interrupted run.
    """
    if not quick and not {"defenses", "search"} & given.keys():
        raise BadValue(
            "name the defenses to compare, as in --defenses 'dropout,topk(k=[.1,.01])', a strength "
            "to find, as in --search 'gaussian(sigma=1e-4..1e-1)', or take --quick"
        )
    plan = make_settings(FrontierPlan, {**(QUICK if quick else {}), **given})
    if quick and workers is None and on == LOCAL:
        workers = min(QUICK_WORKERS, os.cpu_count() or 1)
    place = PlaceRequest(on, address, workers, cpus_per_piece, gpus_per_piece, pieces)
    folder = out or Path("runs") / f"frontier-{plan.digest}"
    check_frontier(plan, data_dir)
    with INTERRUPTS.leaving_at_once():
        from keyhole.frontier.run import find_frontier
        from keyhole.report.frontier_console import print_frontier
        from keyhole.report.frontier_page import write_frontier
    with show_progress() as bar:
        result = find_frontier(
            plan,
            place.open_store(folder),
            on=place.make_place(),
            machine=place.make_machine(device, data_dir),
            progress=bar,
        )
        bar.show("the page is written")
        result.save(folder)
        page = write_frontier(result, folder)
    if as_json:
        say_json(result.to_json())
        return
    print_frontier(result)
    say_unwrapped(f"Frontier: {folder}")
    say_unwrapped(f"Report:   {page}")
