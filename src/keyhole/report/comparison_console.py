"""Prints a comparison on the terminal."""

from __future__ import annotations

from rich.console import Console

from keyhole.auditing.comparison import Comparison, FindingPair, RunComparison, VerdictPair
from keyhole.auditing.labels import label_defense
from keyhole.auditing.verdict import HONEST
from keyhole.metrics import Metric
from keyhole.report.comparison_view import (
    ComparedSection,
    describe_finding,
    explain_pairs,
    format_change,
    format_interval,
    label_pair,
    run_letter,
    split_comparison,
    summarise_comparison,
)
from keyhole.report.console import COLOURS, WIDE
from keyhole.terminal import TextTable, plain_text, say, say_table, say_unwrapped, stdout_console

NARROW = ("psnr", "ssim", "read")
"""Metrics for which a narrow terminal has room."""


def print_comparison(
    comparison: Comparison, console: Console | None = None, *, wide: bool = False
) -> None:
    """Prints each later run against the first: a table of differences, then the verdicts.

    Args:
        comparison: What was compared.
        console: Where to print; None: standard output.
        wide: Whether to show all metrics on a narrow terminal, too.
    """
    console = console or stdout_console()
    for number, run in enumerate(comparison.runs):
        say_unwrapped(f"{run_letter(number)}: {run.run or run.title}", console=console)
    everything = wide or console.width >= WIDE
    for number, compared in enumerate(comparison.comparisons, start=1):
        print_run(compared, run_letter(number), console, everything=everything)


def print_run(compared: RunComparison, name: str, console: Console, *, everything: bool) -> None:
    """Prints one run against the first."""
    say(console=console)
    say(plain_text(f"{name} against A. {summarise_comparison(compared)}", "bold"), console=console)
    for section in split_comparison(compared):
        say(console=console)
        rows = difference_table(section, name, everything=everything)
        if len(rows):
            say_table(rows, console)
        else:
            say(f"{section.model} on {section.data}", console=console)
        for verdict in section.verdicts:
            print_verdicts(verdict, name, console)
    say(console=console)
    for line in (*compared.notes, *explain_pairs(compared.findings)):
        say(f"note: {line}", console=console, style="dim")
    for run, findings in (("A", compared.only_first), (name, compared.only_second)):
        for finding in findings:
            say(f"only in {run}: {describe_finding(finding)}", console=console, style="dim")


def difference_table(section: ComparedSection, name: str, *, everything: bool) -> TextTable:
    """Builds one row for each attacker: both means, their difference, and its interval."""
    metrics = [m for m in section.metrics if everything or m.name in NARROW]
    table = TextTable(
        f"{section.model} on {section.data}",
        caption=f"A → {name}, the difference and its 95% interval; arrows point to where more is "
        "seen; * is clear",
    )
    table.add_column("defense", fold=True, at_least=9)
    table.add_column("attack", fold=True, at_least=9)
    table.add_column("attacker")
    for metric in metrics:
        table.add_column(f"{metric.label} {metric.arrow}", right=True)
    last = ""
    for pair in section.findings:
        defense = label_defense(pair.first.defense)
        cells = [difference_cell(pair, metric) for metric in metrics]
        named = defense if defense != last else ""
        table.add_row(named, label_pair(pair), pair.first.attacker, *cells)
        last = defense
    return table


def difference_cell(pair: FindingPair, metric: Metric) -> str:
    """Formats both means, and below them the difference; a star marks a clear one."""
    found = pair.differences.get(metric.name)
    if found is None:
        return ""
    star = "*" if found.leak in ("more", "less") else ""
    lines = [
        f"{metric.format(found.first)} → {metric.format(found.second)}",
        f"{format_change(metric, found.difference)}{star}",
        format_interval(metric, found),
    ]
    return "\n".join(line for line in lines if line)


def print_verdicts(pair: VerdictPair, name: str, console: Console) -> None:
    """Prints one line for each server: the verdict on a defense in each run."""
    for server in pair.servers:
        label = "" if pair.servers == (HONEST,) else f"{server} server: "
        line = plain_text(f"  {label_defense(pair.either.defense)}: {label}", "bold")
        first, second = pair.judged(server)
        for run, verdict in (("A ", first), (f", {name} ", second)):
            status = "not in this run" if verdict is None else verdict.status
            line.append_text(plain_text(run))
            line.append_text(plain_text(status, COLOURS.get(status, "dim")))
        if pair.changed_for(server):
            line.append_text(plain_text("  changed", "bold"))
        say(line, console=console)
