"""``keyhole audit``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keyhole.auditing.plan import Plan, Stage, read_plan, tour
from keyhole.cli.early_checks import check_stage
from keyhole.cli.gate import FailOn, Junit, Sarif, exit_if_failed, read_gate
from keyhole.cli.plan_options import Given, help_of, takes_fields_of
from keyhole.cli.printing import print_run
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out, Wide, read_victims_at_once
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.spelling import split_names

OPTIONS = {"defenses": "defense", "attacks": "attack", "metrics": "metric", "nodes": "clients"}
"""Fields of a stage whose options have other names."""


@takes_fields_of(Stage, without=("model", "data"), called=OPTIONS)
def audit(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="A plan with [[stage]] tables.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Models, by name, separated by commas.")] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, by name or folder.")] = None,
    *,
    given: Given,
    victims_at_once: Annotated[
        str, typer.Option(help="Victims that iterative attacks attack at once; auto: all.")
    ] = "auto",
    seed: Annotated[int | None, typer.Option(help=help_of(Plan, "seed"))] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    fresh: Fresh = False,
    fail_on: FailOn = None,
    junit: Junit = None,
    sarif: Sarif = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Attack clients through what they share, and judge each defense by its worst attacker.

    Without arguments: the built-in tour, under a minute. With --captured: what the server of a
    real training saw. The same command continues an interrupted audit.
    """
    models, sets = read_names(model, "--model"), read_names(data, "--data")
    for field in ("defenses", "attacks", "metrics"):
        if field in given:
            given[field] = read_names(given[field], f"--{OPTIONS[field]}")
    plan = make_plan(plan_file, models, sets, given).with_all(seed=seed)
    at_once = read_victims_at_once(victims_at_once)
    folder = out or Path("runs") / f"audit-{plan.digest}"
    asked = read_gate(fail_on, junit, sarif, folder)
    for stage in plan.stage:
        check_stage(stage, data_dir)
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing import run_plan
        from keyhole.report import write
    asked.open_baselines()
    with show_progress() as bar:
        result = run_plan(
            plan,
            out=folder,
            data_dir=data_dir,
            device=device,
            fresh=fresh,
            progress=bar,
            victims_at_once=at_once,
        )
        bar.show("the page is written")
        page = write(result)
    gate = asked.judge(result, plan_file)
    print_run(result, page, wide=wide, as_json=as_json, gate=gate)
    exit_if_failed(gate)


def read_names(text: str | None, option: str) -> tuple[str, ...] | None:
    """Returns the names that an option lists; None if it is not given."""
    return None if text is None else tuple(split_names(text, option=option))


def make_plan(
    plan_file: Path | None,
    models: tuple[str, ...] | None,
    sets: tuple[str, ...] | None,
    given: Given,
) -> Plan:
    """Builds the plan: from a file, the tour, or every model on every data set."""
    if plan_file is not None:
        return read_plan(plan_file).with_all(**given)
    names_parts = models or sets or {"defenses", "attacks", "captured"} & given.keys()
    if not names_parts:
        return tour().with_all(**given)
    default = Stage()
    stages = tuple(
        make_settings(Stage, {"model": m, "data": d, **given})
        for m in models or (default.model,)
        for d in sets or (default.data,)
    )
    return Plan(title="Audit", stage=stages)
