"""``keyhole epsilon``."""

from __future__ import annotations

from typing import Annotated

import typer

from keyhole.auditing.epsilon_plan import EpsilonPlan
from keyhole.cli.early_checks import check_defenses, check_victim
from keyhole.cli.gate import GATE_FAILED
from keyhole.cli.plan_options import Given, takes_fields_of
from keyhole.cli.progress import show_progress
from keyhole.cli.shared import DataDir, Json
from keyhole.interrupts import INTERRUPTS
from keyhole.settings import make_settings
from keyhole.terminal import say_json, say_unwrapped


@takes_fields_of(EpsilonPlan)
def epsilon(
    *,
    given: Given,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 if the claimed epsilon is refuted.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Bound a defense's epsilon from below by canaries, beside the epsilon that it claims.

    One run is enough: each canary is in or out by a coin, and the server guesses the coins.
    """
    plan = make_settings(EpsilonPlan, given)
    check_victim(plan.data, plan.model, data_dir, weights=plan.weights)
    check_defenses([plan.defense])
    with INTERRUPTS.leaving_at_once():
        from keyhole.auditing.empirical_epsilon import REFUTED, audit_epsilon
    with show_progress() as bar:
        result = audit_epsilon(plan, data_dir=data_dir, progress=bar)
    if as_json:
        say_json(result.to_json())
    else:
        say_unwrapped(f"{plan.defense}, {plan.model} on {plan.data}: {result.words}")
    if check and result.status == REFUTED:
        raise typer.Exit(GATE_FAILED)
