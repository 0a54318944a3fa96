"""``keyhole train``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole.cli.early_checks import check_training
from keyhole.cli.places import (
    LOCAL,
    RAY,
    Address,
    CpusPerPiece,
    GpusPerPiece,
    Pieces,
    PlaceRequest,
    Workers,
)
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out, read_seeds
from keyhole.errors import BadValue, DoesNotFit
from keyhole.federation.plan import TrainingPlan, expand_training
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import TextTable, log, say_json, say_table, say_unwrapped

if TYPE_CHECKING:
    from keyhole.federation import Round, TrainingResult

FLOWER = "flower"


@takes_fields_of(TrainingPlan, repeated=("defense",))
def train(
    *,
    given: Given,
    capture: Annotated[
        Path | None, typer.Option(help="Folder for what a curious server would see.")
    ] = None,
    limit_gb: Annotated[
        float | None, typer.Option(help="Disk that a capture may use.", min=0)
    ] = None,
    seeds: Annotated[list[str] | None, typer.Option(help="Several seeds: 0,1,2.")] = None,
    on: Annotated[str, typer.Option("--on", help="local, ray or flower (its simulation).")] = LOCAL,
    address: Address = None,
    workers: Workers = None,
    cpus_per_piece: CpusPerPiece = 1,
    gpus_per_piece: GpusPerPiece = 0.0,
    pieces: Pieces = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Train a model by federated averaging, under a defense, and record what the server sees.

    Lists, as in gaussian(sigma=[1e-4,1e-3]) and --seeds 0,1,2, train one model each. The same
    command continues an interrupted training, to the same weights.
    """
    plans = expand_training(given, read_seeds(None, seeds))
    for plan in plans:
        check_training(plan, data_dir)
    if on not in (LOCAL, RAY, FLOWER):
        raise BadValue(f"on: choose local, ray or flower, got {on!r}")
    in_flower = on == FLOWER
    place = PlaceRequest(
        LOCAL if in_flower else on,
        None if in_flower else address,
        workers,
        cpus_per_piece,
        0.0 if in_flower else gpus_per_piece,
        pieces,
    )
    plan = plans[0]
    if len(plans) > 1 or place.asked:
        if capture is not None or in_flower:
            raise BadValue("capture and --on flower are for one training: leave out lists and --on")
        train_in_pieces(plans, place, out, device, data_dir, fresh=fresh, as_json=as_json)
        return
    folder = out or Path("runs") / f"train-{plan.digest}"
    with INTERRUPTS.leaving_at_once():
        from keyhole.device import find_device
        from keyhole.federation import train as train_federation
    with show_progress() as bar:
        bar.begin(plan.rounds)
        bar.show(f"{plan.model} on {plan.data}: clients train")

        def show(seen: Round) -> None:
            bar.skip(seen.number - 1 - bar.whole.done)  # rounds of an earlier run
            bar.advance(1)
            bar.show(f"accuracy {seen.accuracy:.1%}, loss {seen.loss:.3f}")

        if in_flower:
            result = load_flower()(
                plan,
                out=folder,
                data_dir=data_dir,
                device="cuda" if gpus_per_piece else "cpu",
                capture=capture,
                limit_gb=limit_gb,
                fresh=fresh,
                watchers=[show],
                cpus=cpus_per_piece,
                gpus=gpus_per_piece,
                options={} if address is None else {"address": address},
            )
        else:
            result = train_federation(
                plan,
                out=folder,
                data_dir=data_dir,
                device=find_device(device),
                capture=capture,
                limit_gb=limit_gb,
                fresh=fresh,
                watchers=[show],
                keep_updates=False,
            )
    print_training(result, plan, capture, as_json=as_json)


def load_flower() -> Callable[..., TrainingResult]:
    """The function that trains in Flower's simulation; raises where Flower is not installed."""
    try:
        from keyhole.federation.flower.simulation import train_in_simulation
    except ImportError as error:
        raise DoesNotFit(str(error)) from None
    return train_in_simulation


def train_in_pieces(
    plans: Sequence[TrainingPlan],
    place: PlaceRequest,
    out: Path | None,
    device: str,
    data_dir: str | None,
    *,
    fresh: bool,
    as_json: bool,
) -> None:
    """Runs several trainings, each a piece of its own, and prints one row for each defense."""
    with INTERRUPTS.leaving_at_once():
        from keyhole.scale.training_run import TRAININGS, run_trainings
    names = "".join(plan.digest for plan in plans)
    digest = hashlib.sha256(names.encode()).hexdigest()[:8]
    folder = out or Path("runs") / f"trainings-{digest}"
    with show_progress() as bar:
        rows = run_trainings(
            plans,
            out=folder,
            store=place.open_store(folder),
            on=place.make_place(),
            machine=place.make_machine(device, data_dir),
            fresh=fresh,
            progress=bar,
        )
    if as_json:
        say_json({"run": str(folder), "trainings": [vars(row) for row in rows]})
        return
    table = TextTable(caption="accuracy after the last round, mean over seeds, 95% t-interval")
    for name in ("defense", "model", "seeds", "accuracy", "s / round"):
        table.add_column(name, fold=name == "defense", right=name in ("accuracy", "s / round"))
    for row in rows:
        ends = "" if row.low is None or row.high is None else f" [{row.low:.1%}, {row.high:.1%}]"
        listed = ",".join(str(seed) for seed in row.seeds)
        accuracy = f"{row.accuracy:.1%}{ends}"
        table.add_row(row.defense, row.model, listed, accuracy, f"{row.seconds:.2f}")
    say_table(table)
    say_unwrapped(f"Trainings and their weights: {folder / TRAININGS}")


def print_training(
    result: TrainingResult, plan: TrainingPlan, capture: Path | None, *, as_json: bool
) -> None:
    """Prints the result of a training, for people or for machines."""
    from keyhole.defenses import DEFENSES

    if as_json:
        value = {**result.to_json(), "captured": None if capture is None else str(capture)}
        say_json(value)
        return
    for caveat in DEFENSES.parse(plan.defense).caveats(result.model):
        log(f"note: {caveat}")
    if (warning := warn_of_noise(result.rounds)) is not None:
        log(f"note: {warning}")
    if result.resumed_after:
        log(f"continued after round {result.resumed_after}")
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


MOST_NOISE = 3.0
"""Noise that is this many times as long as the updates causes a warning."""


def warn_of_noise(rounds: Sequence[Mapping[str, Any]]) -> str | None:
    """Returns a warning if a defense's noise is far longer than the clients' updates."""
    records = [each for line in rounds for each in line["defense"] if each.get("update_norm")]
    times = [each["noise_norm"] / each["update_norm"] for each in records if "noise_norm" in each]
    if not times or median(times) < MOST_NOISE:
        return None
    capped = ", at its cap" if all(each.get("beta") == 1.0 for each in records) else ""
    return (
        f"the noise is {median(times):.0f} times as long as the clients' updates{capped}: lower lr "
        "or the local steps, raise epsilon, or choose beta or sigma yourself"
    )
