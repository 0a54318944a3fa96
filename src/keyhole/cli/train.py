"""``keyhole train``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keyhole.cli.early_checks import check_training
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Device, Fresh, Json, Out
from keyhole.federation.plan import TrainingPlan
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.terminal import log, say_json, say_unwrapped

if TYPE_CHECKING:
    from keyhole.federation import Round, TrainingResult


@takes_fields_of(TrainingPlan)
def train(
    *,
    given: Given,
    capture: Annotated[
        Path | None, typer.Option(help="Folder for what a curious server would see.")
    ] = None,
    limit_gb: Annotated[
        float | None, typer.Option(help="Disk that a capture may use.", min=0)
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    out: Out = None,
    fresh: Fresh = False,
    as_json: Json = False,
) -> None:
    """Train a model by federated averaging, under a defense, and record what the server sees.

    The same command continues an interrupted training, to the same weights.
    """
    plan = make_settings(TrainingPlan, given)
    check_training(plan, data_dir)
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
    print_training(result, plan, capture, as_json=as_json)


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
