"""``keyhole audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.auditing.plan import Plan, Stage, read_plan_values, read_tour_values
from keyhole.auditing.sweep import Sweep, expand_plan, read_stages
from keyhole.cli.early_checks import check_stage
from keyhole.cli.frontier_option import keep_frontier, open_frontier
from keyhole.cli.gate import FailOn, Junit, Sarif, exit_if_failed, read_gate
from keyhole.cli.places import (
    LOCAL,
    Address,
    CpusPerPiece,
    GpusPerPiece,
    On,
    Pieces,
    PlaceRequest,
    ShardOption,
    Workers,
)
from keyhole.cli.plan_options import Given, help_of, join_repeated, takes_fields_of
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import (
    DataDir,
    Device,
    Fresh,
    Frontier,
    Json,
    Out,
    Wide,
    read_seeds,
    read_victims_at_once,
)
from keyhole.interrupts import INTERRUPTS
from keyhole.scale.shard import read_shard
from keyhole.spelling import split_names
from keyhole.terminal import log

OPTIONS = {"defenses": "defense", "attacks": "attack", "metrics": "metric", "nodes": "clients"}
"""Fields of a stage whose options have other names."""


@takes_fields_of(Stage, without=("model", "data"), called=OPTIONS, lists=True)
def audit(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="A plan with [[stage]] tables.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Models, by name, separated by commas.")
    ] = None,
    data: Annotated[list[str] | None, typer.Option(help="Data sets, by name or folder.")] = None,
    *,
    given: Given,
    victims_at_once: Annotated[
        str, typer.Option(help="Victims that iterative attacks attack at once; auto: all.")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(help=help_of(Plan, "seed"))] = None,
    seeds: Annotated[list[str] | None, typer.Option(help="Several seeds: 0,1,2.")] = None,
    on: On = LOCAL,
    address: Address = None,
    workers: Workers = None,
    cpus_per_piece: CpusPerPiece = 1,
    gpus_per_piece: GpusPerPiece = 0.0,
    pieces: Pieces = None,
    shard: ShardOption = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    fresh: Fresh = False,
    frontier: Frontier = None,
    fail_on: FailOn = None,
    junit: Junit = None,
    sarif: Sarif = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Attack clients through what they share, and judge each defense by its worst attacker.

    Without arguments: the built-in tour, under a minute. With --captured: what the server of a
    real training saw. Values may be lists, as in gaussian(sigma=[1e-5,1e-4]) or --batch-size 1,8:
    each combination is a piece, whose result later plans find again. The same command continues an
    interrupted audit.
    """
    models = read_names(None if model is None else join_repeated(model), "--model")
    sets = read_names(None if data is None else join_repeated(data), "--data")
    for field in ("defenses", "attacks", "metrics"):
        if field in given:
            given[field] = read_names(given[field], f"--{OPTIONS[field]}")
    sweep = make_sweep(plan_file, models, sets, given, read_seeds(seed, seeds))
    at_once = read_victims_at_once(victims_at_once)
    place = PlaceRequest(on, address, workers, cpus_per_piece, gpus_per_piece, pieces)
    part = None if shard is None else read_shard(shard)
    suffix = "" if part is None else f"-shard-{part.number}-of-{part.count}"
    folder = out or Path("runs") / f"audit-{sweep.digest}{suffix}"
    asked = read_gate(fail_on, junit, sarif, folder)
    for stage in sweep.plans[0].stage:
        check_stage(stage, data_dir)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing import run_plan
        from keyhole.report import write
        from keyhole.scale.audit_run import run_sweep
    asked.open_baselines()
    known = open_frontier(frontier)
    with show_progress() as bar:
        if sweep.swept or place.asked or part is not None:
            result = run_sweep(
                sweep,
                out=folder,
                store=place.open_store(folder),
                on=place.make_place(),
                machine=place.make_machine(device, data_dir, at_once),
                shard=part,
                fresh=fresh,
                progress=bar,
            )
        else:
            result = run_plan(
                sweep.plans[0],
                out=folder,
                data_dir=data_dir,
                device=device,
                fresh=fresh,
                progress=bar,
                victims_at_once=at_once,
            )
        bar.show("the page is written")
        keep_frontier(known, folder)
        page = write(result, frontier=known)
    gate = asked.judge(result, plan_file)
    if part is not None and not (result.findings or result.skipped):
        log(f"shard {part} has no pieces: the plan has fewer; merge takes its empty folder")
    print_run(result, page, wide=wide, as_json=as_json, gate=gate, frontier=known)
    exit_if_failed(gate)


def read_names(text: str | None, option: str) -> tuple[str, ...] | None:
    """Returns the names that an option lists; None if it is not given."""
    return None if text is None else tuple(split_names(text, option=option))


def make_sweep(
    plan_file: Path | None,
    models: tuple[str, ...] | None,
    sets: tuple[str, ...] | None,
    given: Given,
    seeds: tuple[int, ...] | None,
) -> Sweep:
    """Builds the plan: from a file, the tour, or every model on every data set."""
    where = "" if plan_file is None else f" in {plan_file}"
    if plan_file is not None:
        values = read_plan_values(plan_file)
    elif models or sets or {"defenses", "attacks", "captured"} & given.keys():
        default = Stage()
        stages = [
            {"model": m, "data": d}
            for m in models or (default.model,)
            for d in sets or (default.data,)
        ]
        values = {"stage": stages}
    else:
        values = read_tour_values()
    if seeds is not None:
        values["seed"] = list(seeds)
    if given:
        values["stage"] = [{**stage, **given} for stage in read_stages(values, where)]
    return expand_plan(values, where=where)
