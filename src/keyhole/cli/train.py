"""``keyhole train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from keyhole.audit import find_device
from keyhole.cli.progress import watched
from keyhole.cli.shared import (
    Augment,
    ClientMode,
    Clip,
    DataDir,
    Device,
    ImageSize,
    Json,
    Mean,
    Model,
    Momentum,
    Optimiser,
    Seed,
    Source,
    Std,
)
from keyhole.defenses import DEFENSES
from keyhole.federation import Round, TrainingPlan, TrainingResult
from keyhole.federation import train as train_federation
from keyhole.settings import checked
from keyhole.terminal import log, say_json, say_unwrapped


def train(
    data: Source = None,
    model: Model = None,
    clients: Annotated[int | None, typer.Option(help="Clients in all.")] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds in all.")] = None,
    fraction: Annotated[float | None, typer.Option(help="Share of clients in a round.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="iid, balanced, dirichlet(alpha=0.5) or by-user.")
    ] = None,
    images: Annotated[int | None, typer.Option(help="Images of a client, at most.")] = None,
    defense: Annotated[str | None, typer.Option(help="One defense, as in audit.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Local epochs.")] = None,
    steps: Annotated[int | None, typer.Option(help="Local steps, instead of epochs.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Images in a local batch.")] = None,
    lr: Annotated[float | None, typer.Option(help="Local learning rate.")] = None,
    optimiser: Optimiser = None,
    momentum: Momentum = None,
    clip: Clip = None,
    augment: Augment = False,
    client_mode: ClientMode = None,
    image_size: ImageSize = None,
    mean: Mean = None,
    std: Std = None,
    weights: Annotated[Path | None, typer.Option(help="Weights to start from.")] = None,
    together: Annotated[
        str | None, typer.Option(help="Train clients as one tensor axis: auto, yes or no.")
    ] = None,
    seed: Seed = None,
    capture: Annotated[
        Path | None, typer.Option(help="Folder for what a curious server would see.")
    ] = None,
    limit_gb: Annotated[
        float | None, typer.Option(help="Disk that a capture may use.", min=0)
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: under runs/.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Replace an earlier run there.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model by federated averaging, under a defense, and write down what the server sees.

    The same command continues an interrupted training, to the same weights.
    """
    choices = {
        "data": data,
        "model": model,
        "clients": clients,
        "rounds": rounds,
        "fraction": fraction,
        "partition": partition,
        "images": images,
        "defense": defense,
        "epochs": epochs,
        "steps": steps,
        "batch_size": batch_size,
        "lr": lr,
        "optimiser": optimiser,
        "momentum": momentum,
        "clip": clip,
        "augment": augment or None,
        "client_mode": client_mode,
        "image_size": image_size,
        "mean": mean,
        "std": std,
        "weights": weights,
        "together": together,
        "seed": seed,
    }
    plan = checked(TrainingPlan, {k: v for k, v in choices.items() if v is not None})
    with watched() as bar:
        bar.begin(plan.rounds)
        bar.show(f"{plan.model} on {plan.data}: clients train")

        def show(seen: Round) -> None:
            bar.skip(seen.number - 1 - bar.whole.done)  # rounds of an earlier run
            bar.advance(1)
            bar.show(f"accuracy {seen.accuracy:.1%}, loss {seen.loss:.3f}")

        result = train_federation(
            plan,
            out=out or Path("runs") / f"train-{plan.digest}",
            data_dir=data_dir,
            device=find_device(device),
            capture=capture,
            limit_gb=limit_gb,
            fresh=fresh,
            watchers=[show],
            keep_updates=False,
        )
    tell(result, plan, capture, as_json=as_json)


def tell(
    result: TrainingResult, plan: TrainingPlan, capture: Path | None, *, as_json: bool
) -> None:
    """Prints what became of a training, for people or for machines."""
    if as_json:
        value = {**result.to_json(), "captured": None if capture is None else str(capture)}
        say_json(value)
        return
    for caveat in DEFENSES.parse(plan.defense).caveats(result.model):
        log(f"note: {caveat}")
    if (said := drowned(result.rounds)) is not None:
        log(f"note: {said}")
    if result.resumed_after:
        log(f"taken up after round {result.resumed_after}")
    for line in result.rounds:
        norms = line["update_norms"]
        loss = "not finite" if line["loss"] is None else f"{line['loss']:.3f}"
        say_unwrapped(
            f"round {line['round']:>3}  accuracy {line['accuracy']:6.1%}  loss {loss}  "
            f"update norm {sum(norms) / len(norms):.3g}  {line['seconds']:.2f} s"
        )
    say_unwrapped(f"Weights:  {result.to_json()['weights']}")
    if capture is not None:
        say_unwrapped(f"Captured: {capture}")
        model, data = plan.model, plan.data
        hint = f"keyhole audit --captured {capture} --model {model} --data {data}"
        say_unwrapped(f"Audit it: {hint}")


LOUD = 3.0
"""Noise so many times as long as the updates is worth a word."""


def drowned(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """One line where a defense's noise is far longer than what clients have to say."""
    said = [one for line in rounds for one in line["defense"] if one.get("update_norm")]
    times = [one["noise_norm"] / one["update_norm"] for one in said if "noise_norm" in one]
    if not times or median(times) < LOUD:
        return None
    capped = ", at its cap" if all(one.get("beta") == 1.0 for one in said) else ""
    return (
        f"the noise is {median(times):.0f} times as long as the clients' updates{capped}: lower lr "
        "or the local steps, or give a greater epsilon, or a beta or sigma of your own"
    )
