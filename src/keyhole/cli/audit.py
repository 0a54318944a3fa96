"""``keyhole audit`` and ``keyhole report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from keyhole.audit import AuditResult, Plan, Stage, Store, read_plan, run_plan, tour
from keyhole.audit.membership_store import is_membership_run, read_result
from keyhole.audit.run import rebuild
from keyhole.cli.membership import tell as tell_membership
from keyhole.cli.progress import watched
from keyhole.cli.shared import (
    ClientMode,
    DataDir,
    Device,
    ImageSize,
    Json,
    Mean,
    Std,
    Wide,
    at_once,
)
from keyhole.registry import split_names
from keyhole.report import membership_page, print_result, write
from keyhole.settings import checked
from keyhole.terminal import say_json, say_unwrapped


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
    mean: Mean = None,
    std: Std = None,
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
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Attack clients through what they share, and judge each defense by its worst attacker.

    Without arguments: the built-in tour, under a minute. With --captured: what the server of a
    real training saw. The same command continues an interrupted audit.
    """
    choices = {
        "image_size": image_size,
        "mean": mean,
        "std": std,
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
        "defenses": names_in(defense, "--defense"),
        "attacks": names_in(attack, "--attack"),
    }
    models, sets = names_in(model, "--model"), names_in(data, "--data")
    plan = make_plan(plan_file, models, sets, choices).with_all(seed=seed)
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
        bar.show("the page is written")
        page = write(result, title=plan.title)
    tell(result, page, wide=wide, as_json=as_json)


def names_in(text: str | None, option: str) -> tuple[str, ...] | None:
    """The names that an option gives; None where it is not given."""
    return None if text is None else tuple(split_names(text, option=option))


def make_plan(
    plan_file: Path | None,
    models: tuple[str, ...] | None,
    sets: tuple[str, ...] | None,
    choices: dict[str, Any],
) -> Plan:
    """The plan that the options ask for: a file's, the tour, or every model on every data set."""
    given = {k: v for k, v in choices.items() if v is not None}
    if plan_file is not None:
        return read_plan(plan_file).with_all(**given)
    names_parts = models or sets or {"defenses", "attacks", "captured"} & given.keys()
    if not names_parts:
        return tour().with_all(**given)
    default = Stage()
    stages = tuple(
        checked(Stage, {"model": m, "data": d, **given})
        for m in models or (default.model,)
        for d in sets or (default.data,)
    )
    return Plan(title="Audit", stage=stages)


def report(
    run: Annotated[Path, typer.Argument(help="The folder of an audit or a membership run.")],
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show an earlier audit again and write its page anew."""
    if is_membership_run(run):
        inferred = read_result(run)
        tell_membership(inferred, membership_page.write(inferred), wide=wide, as_json=as_json)
        return
    with watched() as bar:
        bar.show("findings are read")
        store = Store.existing(run)
        result = rebuild(store)
        bar.show("the page is written")
        page = write(result, title=str((store.plan() or {}).get("title", "Audit")))
    tell(result, page, wide=wide, as_json=as_json)


def tell(result: AuditResult, page: str, *, wide: bool, as_json: bool) -> None:
    """Prints a result for people or for machines."""
    if as_json:
        say_json(result.to_json())
        return
    print_result(result, wide=wide)
    say_unwrapped(f"Findings: {result.run}")
    say_unwrapped(f"Report:   {page}")
