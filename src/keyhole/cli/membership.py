"""``keyhole membership``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from keyhole.audit import find_device
from keyhole.audit.membership import MembershipPlan, MembershipResult, Trial, infer_membership
from keyhole.cli.progress import watched
from keyhole.cli.shared import (
    Augment,
    ClientMode,
    Clip,
    DataDir,
    Device,
    ImageSize,
    Json,
    Model,
    Momentum,
    Optimiser,
    Seed,
    Source,
    Wide,
)
from keyhole.errors import BadValue
from keyhole.report import membership_page
from keyhole.report.console import WIDE
from keyhole.report.membership_view import coarse, facts, is_told, named, rates_of, words
from keyhole.settings import checked
from keyhole.terminal import (
    TextTable,
    plain,
    say,
    say_json,
    say_table,
    say_unwrapped,
    stdout_console,
)


def membership(
    data: Source = None,
    model: Model = None,
    defense: Annotated[
        str | None, typer.Option(help="Defenses, e.g. 'none,gaussian(sigma=0.01)'.")
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(help="loss, shadow, lira, 'lira(variant=\"offline\")'; or several."),
    ] = None,
    members: Annotated[
        int | None, typer.Option(help="Images trained on; as many others are asked about.")
    ] = None,
    public: Annotated[
        int | None, typer.Option(help="Images of the attacker's own, at most.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the images.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Attack after these epochs as well: 1,5,20.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimiser: Optimiser = None,
    momentum: Momentum = None,
    clip: Clip = None,
    augment: Augment = False,
    client_mode: ClientMode = None,
    clients: Annotated[
        int | None, typer.Option(help="Clients who share the images; the global model is attacked.")
    ] = None,
    local_epochs: Annotated[
        int | None, typer.Option(help="Passes in a round, where there are several clients.")
    ] = None,
    shadows: Annotated[
        int | None, typer.Option(help="Models that an attacker trains who needs some.")
    ] = None,
    views: Annotated[
        int | None,
        typer.Option(help="Views of an attacker who knows that images are changed; 0: none."),
    ] = None,
    image_size: ImageSize = None,
    seed: Seed = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: under runs/.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace an earlier run there.")] = False,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Ask a trained model which images it was trained on, and judge defenses by the answers.

    Attackers who know the defense are added wherever it can help them. The same command continues
    an interrupted run.
    """
    choices = {
        "data": data,
        "model": model,
        "defenses": defense,
        "attacks": attack,
        "members": members,
        "public": public,
        "epochs": epochs,
        "at": None if at is None else epochs_of(at),
        "batch_size": batch_size,
        "lr": lr,
        "optimiser": optimiser,
        "momentum": momentum,
        "clip": clip,
        "augment": augment or None,
        "client_mode": client_mode,
        "clients": clients,
        "local_epochs": local_epochs,
        "shadows": shadows,
        "views": views,
        "image_size": image_size,
        "seed": seed,
    }
    plan = checked(MembershipPlan, {k: v for k, v in choices.items() if v is not None})
    with watched() as bar:
        result = infer_membership(
            plan,
            out=out or Path("runs") / f"membership-{plan.digest}",
            fresh=fresh,
            data_dir=data_dir,
            device=find_device(device),
            progress=bar,
        )
        bar.show("the page is written")
        page = membership_page.write(result)
    tell(result, page, wide=wide, as_json=as_json)


def tell(result: MembershipResult, page: str, *, wide: bool, as_json: bool) -> None:
    """Prints a result for people or for machines."""
    if as_json:
        say_json(result.to_json())
        return
    print_result(result, wide=wide)
    say_unwrapped(f"Findings: {result.run}")
    say_unwrapped(f"Report:   {page}")


def epochs_of(text: str) -> tuple[int, ...]:
    """Reads ``1,5,20``."""
    parts = [part.strip() for part in text.split(",")]
    bad = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if bad:
        raise BadValue(f"at: {bad[0]!r} is no epoch: write 1,5,20")
    return tuple(int(part) for part in parts)


def print_result(
    result: MembershipResult, console: Console | None = None, *, wide: bool = False
) -> None:
    """A table of all attackers, then a line for each model; ``wide`` asks for intervals."""
    console = console or stdout_console()
    plan = result.plan
    made = TextTable(f"{plan.model} on {plan.data}", caption=facts(result))
    roomy = console.width >= WIDE
    made.add_column("defense", fold=True, at_least=12)
    made.add_column("epochs", right=True)
    made.add_column("attack", fold=True, at_least=10)
    made.add_column("attacker")
    for name in ("AUC ↑", *(["95%", "best acc. ↑"] if roomy else [])):
        made.add_column(name, right=True)
    for rate in rates_of(result):
        made.add_column(f"TPR@{rate.limit:.1%} ↑", right=True)
    for trial in result.trials:
        add_rows(made, trial, roomy=roomy, wide=wide)
    say(console=console)
    say_table(made, console)
    for trial in result.trials:
        who = plain(f"{named(trial)}, {trial.epochs} epochs: ", "bold")
        say("  ", who, plain(words(trial), "red" if is_told(trial) else "cyan"), console=console)
    for note in [*result.notes, *coarse(result), *([] if roomy or wide else [LEFT_OUT])]:
        say(f"note: {note}", console=console, style="dim")


LEFT_OUT = "--wide shows the AUCs' 95% intervals, --json holds them"
"""Told where a terminal has no room for intervals."""


def add_rows(made: TextTable, trial: Trial, *, roomy: bool, wide: bool) -> None:
    """A row for each attacker; a star where there are too few non-members for so low a rate."""
    for place, each in enumerate(trial.inferences):
        first = place == 0
        interval = f"{each.auc_low:.3f}-{each.auc_high:.3f}"
        below = f"\n[{each.auc_low:.3f}-\n{each.auc_high:.3f}]" if wide and not roomy else ""
        made.add_row(
            named(trial) if first else "",
            str(trial.epochs) if first else "",
            each.attack,
            each.attacker,
            f"{each.auc:.3f}{below}",
            *((interval, f"{each.balanced_accuracy:.1%}") if roomy else ()),
            *(f"{rate.rate:.1%}{'' if rate.resolved else '*'}" for rate in each.rates),
            style="bold" if each is trial.worst else None,
        )
