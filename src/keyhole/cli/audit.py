"""``keyhole audit``, ``keyhole report``, ``keyhole list``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from keyhole.audit import AuditResult, Plan, Stage, Store, read_plan, run_plan, tour
from keyhole.audit.run import rebuild
from keyhole.cli.shared import (
    ClientMode,
    DataDir,
    Device,
    ImageSize,
    Json,
    at_once,
    watched,
)
from keyhole.registry import split_names
from keyhole.report import print_result, write
from keyhole.report.catalogue import catalogue
from keyhole.settings import checked


def audit(
    plan_file: Annotated[
        Path | None, typer.Argument(metavar="[PLAN.toml]", help="A plan with [[stage]] tables.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Models, by name, separated by commas.")] = None,
    data: Annotated[str | None, typer.Option(help="Data sets, by name or folder.")] = None,
    defense: Annotated[
        str | None, typer.Option(help="Defenses, e.g. 'none,gaussian(sigma=0.01)'.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help="Attacks; default: all that apply to an honest server.")
    ] = None,
    victims: Annotated[int | None, typer.Option(help="Clients attacked.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a client's batch.")] = None,
    image_size: ImageSize = None,
    weights: Annotated[
        Path | None, typer.Option(help="The model's weights, safetensors; default: random.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Local SGD steps; needs --lr.")] = None,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate: clients share weights, not gradients.")
    ] = None,
    client_mode: ClientMode = None,
    iterations: Annotated[
        int | None, typer.Option(help="Iterations of every iterative attack, at most.")
    ] = None,
    parity: Annotated[
        str | None, typer.Option(help="paper: iterative attacks exactly as published; far slower.")
    ] = None,
    victims_at_once: Annotated[
        str, typer.Option(help="Victims that share the device in iterative attacks; auto: all.")
    ] = "auto",
    captured: Annotated[
        Path | None, typer.Option(help="A folder that a curious server wrote: attack that.")
    ] = None,
    rounds: Annotated[
        str | None, typer.Option(help="Captured rounds: 1,3 or all; default: the first.")
    ] = None,
    clients: Annotated[str | None, typer.Option(help="Captured clients, by name: 0,7.")] = None,
    repeats: Annotated[
        int | None, typer.Option(help="Updates that each client sends by the same images.")
    ] = None,
    truth: Annotated[
        Path | None, typer.Option(help="JSON: whose images were whose, to score by.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, victims and noise.")] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: under runs/.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace an earlier audit there.")] = False,
    as_json: Json = False,
) -> None:
    """Attack clients through what they share, and judge each defense by its worst attacker.

    Without arguments: the built-in tour, under a minute. With --captured: what the server of a
    real training saw. The same command continues an interrupted audit.
    """
    choices = {
        "image_size": image_size,
        "weights": weights,
        "victims": victims,
        "batch_size": batch_size,
        "steps": steps,
        "lr": lr,
        "repeats": repeats,
        "client_mode": client_mode,
        "iterations": iterations,
        "parity": parity,
        "captured": captured,
        "rounds": rounds,
        "nodes": clients,
        "truth": truth,
        "defenses": tuple(split_names(defense)) if defense else None,
        "attacks": tuple(split_names(attack)) if attack else None,
    }
    plan = make_plan(plan_file, model, data, choices).with_all(seed=seed)
    folder = out or Path("runs") / f"audit-{plan.digest}"
    with watched() as bar:
        result = run_plan(
            plan,
            out=folder,
            data_dir=data_dir,
            device=device,
            fresh=fresh,
            progress=bar,
            victims_at_once=at_once(victims_at_once),
        )
        page = write(result, title=plan.title)
    tell(result, page, as_json=as_json)


def make_plan(
    plan_file: Path | None, model: str | None, data: str | None, choices: dict[str, Any]
) -> Plan:
    """The plan that the options ask for: a file's, the tour, or every model on every data set."""
    given = {k: v for k, v in choices.items() if v is not None}
    if plan_file is not None:
        return read_plan(plan_file).with_all(**given)
    names_parts = model or data or {"defenses", "attacks", "captured"} & given.keys()
    if not names_parts:
        return tour().with_all(**given)
    default = Stage()
    stages = tuple(
        checked(Stage, {"model": m, "data": d, **given})
        for m in split_names(model or default.model)
        for d in split_names(data or default.data)
    )
    return Plan(title="Audit", stage=stages)


def report(
    run: Annotated[Path, typer.Argument(help="The folder of an audit.")],
    as_json: Json = False,
) -> None:
    """Show an earlier audit again and write its page anew."""
    store = Store.existing(run)
    result = rebuild(store)
    plan = store.plan() or {}
    tell(result, write(result, title=str(plan.get("title", "Audit"))), as_json=as_json)


def list_all(as_json: Json = False) -> None:
    """List attacks, defenses, models, data sets and metrics: what each is and what it needs."""
    rooms = catalogue()
    if as_json:
        typer.echo(json.dumps(rooms, indent=1))
        return
    console = Console()
    for room, entries in rooms.items():
        console.print(f"\n{room}", style="bold")
        for entry in entries:
            console.print(f"  {entry['name']}", style="cyan", highlight=False)
            for key, value in entry.items():
                if key != "name" and value not in ("", None, {}, []):
                    console.print(f"      {key}: {value}", highlight=False, markup=False)


def tell(result: AuditResult, page: str, *, as_json: bool) -> None:
    """Prints a result for people or for machines."""
    if as_json:
        typer.echo(json.dumps(result.to_json(), allow_nan=False))
        return
    console = Console()
    print_result(result, console)
    console.print(f"Findings: {result.run}", highlight=False, soft_wrap=True)
    console.print(f"Report:   {page}", highlight=False, soft_wrap=True)
