"""``keyhole membership``."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyhole.audit import find_device
from keyhole.audit.membership import MembershipPlan, MembershipResult, Trial, infer_membership
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
    watched,
)
from keyhole.errors import BadValue
from keyhole.metrics.membership import RateAt
from keyhole.registry import spell
from keyhole.report.console import WIDE
from keyhole.settings import checked


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
    as_json: Json = False,
) -> None:
    """Ask a trained model which images it was trained on, and judge defenses by the answers.

    Attackers who know the defense are added wherever it can help them.
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
        result = infer_membership(plan, data_dir=data_dir, device=find_device(device), progress=bar)
    if as_json:
        typer.echo(json.dumps(result.to_json(), allow_nan=False))
    else:
        print_result(result, Console())


def epochs_of(text: str) -> tuple[int, ...]:
    """Reads ``1,5,20``."""
    parts = [part.strip() for part in text.split(",")]
    bad = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if bad:
        raise BadValue(f"at: {bad[0]!r} is no epoch: write 1,5,20")
    return tuple(int(part) for part in parts)


def print_result(result: MembershipResult, console: Console) -> None:
    """A table of all attackers, then a line for each model."""
    plan = result.plan
    made = Table(
        title=f"\n{plan.model} on {plan.data}",
        caption=facts(result),
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    wide = console.width >= WIDE
    made.add_column("defense", overflow="fold", min_width=12)
    made.add_column("epochs", justify="right", no_wrap=True)
    made.add_column("attack", overflow="fold", min_width=10)
    made.add_column("attacker", no_wrap=True)
    for name in ("AUC ↑", *(["95%", "best acc. ↑"] if wide else [])):
        made.add_column(name, justify="right", no_wrap=True)
    for rate in rates_of(result):
        made.add_column(f"TPR@{rate.limit:.1%} ↑", justify="right", no_wrap=True)
    for trial in result.trials:
        add_rows(made, trial, wide=wide)
    console.print(made)
    for trial in result.trials:
        line = Text("  ")
        line.append(f"{named(trial)}, {trial.epochs} epochs: ", style="bold")
        told = trial.worst.auc_low > 0.5
        line.append(words(trial), style="red" if told else "cyan")
        console.print(line)
    for note in [*result.notes, *coarse(result)]:
        console.print(Text(f"note: {note}", style="dim"))


def add_rows(made: Table, trial: Trial, *, wide: bool) -> None:
    """A row for each attacker; a star where there are too few non-members for so low a rate."""
    for place, each in enumerate(trial.inferences):
        first = place == 0
        interval = (f"{each.auc_low:.3f}-{each.auc_high:.3f}", f"{each.balanced_accuracy:.1%}")
        made.add_row(
            named(trial) if first else "",
            str(trial.epochs) if first else "",
            each.attack,
            each.attacker,
            f"{each.auc:.3f}",
            *(interval if wide else ()),
            *(f"{rate.rate:.1%}{'' if rate.resolved else '*'}" for rate in each.rates),
            style="bold" if each is trial.worst else None,
        )


def named(trial: Trial) -> str:
    return spell(trial.defense["name"], trial.defense["parameters"])


def words(trial: Trial) -> str:
    """What became of one model, in a line."""
    worst = trial.worst
    accuracy = (
        f"{trial.train_accuracy:.1%} right on its own images, {trial.test_accuracy:.1%} on others"
    )
    if worst.auc_low > 0.5:
        area = f"AUC {worst.auc:.3f} [{worst.auc_low:.3f}, {worst.auc_high:.3f}]"
        return f"{accuracy}; members told by {worst.attack} ({worst.attacker}), {area}"
    return f"{accuracy}; members not told from others by the attacks tried"


def facts(result: MembershipResult) -> str:
    """Who trained on what, in one line."""
    plan = result.plan
    who = "one client" if plan.clients == 1 else f"{plan.clients} clients"
    return (
        f"{who} trained on {result.members} images; {result.others} others asked about; "
        f"{result.public} public images; {plan.optimiser}, lr {plan.lr:g}; seed {plan.seed}"
    )


def rates_of(result: MembershipResult) -> tuple[RateAt, ...]:
    return result.trials[0].inferences[0].rates


def coarse(result: MembershipResult) -> list[str]:
    """What the stars mean, where there are any."""
    if all(rate.resolved for rate in rates_of(result)):
        return []
    return [
        f"* {result.others} non-members cannot show a false-positive rate below "
        f"{rates_of(result)[0].resolution:.2%}: told is the rate without any false alarm"
    ]
