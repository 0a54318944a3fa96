"""Prints a membership experiment on the terminal."""

from __future__ import annotations

from rich.console import Console

from keyhole.auditing.membership_result import MembershipResult, Trial
from keyhole.report.console import WIDE
from keyhole.report.membership_view import (
    describe_experiment,
    describe_trial,
    explain_stars,
    identifies_members,
    label_trial,
    rates_of,
)
from keyhole.terminal import TextTable, plain_text, say, say_table, stdout_console


def print_result(
    result: MembershipResult, console: Console | None = None, *, wide: bool = False
) -> None:
    """Prints a table of all attackers, then a line for each model; ``wide`` shows intervals."""
    console = console or stdout_console()
    plan = result.plan
    table = TextTable(f"{plan.model} on {plan.data}", caption=describe_experiment(result))
    roomy = console.width >= WIDE
    table.add_column("defense", fold=True, at_least=12)
    table.add_column("epochs", right=True)
    table.add_column("attack", fold=True, at_least=10)
    table.add_column("attacker")
    for name in ("AUC ↑", *(["95%", "best acc. ↑"] if roomy else [])):
        table.add_column(name, right=True)
    for rate in rates_of(result):
        table.add_column(f"TPR@{rate.limit:.1%} ↑", right=True)
    for trial in result.trials:
        add_rows(table, trial, roomy=roomy, wide=wide)
    say(console=console)
    say_table(table, console)
    for trial in result.trials:
        who = plain_text(f"{label_trial(trial)}, {trial.epochs} epochs: ", "bold")
        colour = "red" if identifies_members(trial) else "cyan"
        say("  ", who, plain_text(describe_trial(trial), colour), console=console)
    for note in [*result.notes, *explain_stars(result), *([] if roomy or wide else [LEFT_OUT])]:
        say(f"note: {note}", console=console, style="dim")


LEFT_OUT = "--wide shows the AUCs' 95% intervals, --json holds them"
"""Printed if the terminal has no room for intervals."""


def add_rows(table: TextTable, trial: Trial, *, roomy: bool, wide: bool) -> None:
    """Adds a row for each attacker; a star marks rates too low for so few non-members."""
    for place, each in enumerate(trial.inferences):
        first = place == 0
        interval = f"{each.auc_low:.3f}-{each.auc_high:.3f}"
        below = f"\n[{each.auc_low:.3f}-\n{each.auc_high:.3f}]" if wide and not roomy else ""
        table.add_row(
            label_trial(trial) if first else "",
            str(trial.epochs) if first else "",
            each.attack,
            each.attacker,
            f"{each.auc:.3f}{below}",
            *((interval, f"{each.balanced_accuracy:.1%}") if roomy else ()),
            *(f"{rate.rate:.1%}{'' if rate.resolved else '*'}" for rate in each.rates),
            style="bold" if each is trial.worst else None,
        )
