"""Prints an audit on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

from rich.console import Console

from keyhole.auditing.finding import Finding
from keyhole.auditing.labels import label_attack, label_defense
from keyhole.auditing.results import AuditResult
from keyhole.auditing.sections import Section
from keyhole.auditing.verdict import BROKEN, NOT_BROKEN, NOT_SCORED, NOT_TESTED, Verdict
from keyhole.defenses import Acted
from keyhole.frontier.advice import Advice, advise
from keyhole.frontier.result import FrontierResult
from keyhole.metrics import Metric
from keyhole.report import view
from keyhole.report.sweep_view import print_sweep
from keyhole.terminal import TextTable, plain_text, say, say_table, stdout_console

COLOURS = {BROKEN: "red", NOT_BROKEN: "cyan", NOT_SCORED: "yellow", NOT_TESTED: "yellow"}

ACTED = {Acted.IDLE: "red", Acted.WEAK: "red", Acted.UNKNOWN: "yellow", Acted.ACTED: "dim"}

WIDE = 110
"""A terminal of this many columns has room for intervals beside the means."""

ATTACK_WIDTH = 11
"""Letters of an attack's name; one with parameters takes several lines."""


class Intervals(Enum):
    """Where a cell shows the interval of its mean."""

    NOWHERE = auto()
    BESIDE = auto()
    BELOW = auto()
    STACKED = auto()
    """Below the mean, its two ends one below the other."""


def print_result(
    result: AuditResult,
    console: Console | None = None,
    *,
    wide: bool = False,
    frontier: FrontierResult | None = None,
) -> None:
    """Prints a table for each model and data set, then the verdicts, then what to do.

    Of a sweep, one table for each parameter and the verdicts; all tables with ``wide``.

    Args:
        result: What the audit found.
        console: Where to print; None means standard output.
        wide: Whether to show 95% intervals on a narrow terminal, too.
        frontier: The frontier by which to say what to do; None: that in the run folder, if any.
    """
    console = console or stdout_console()
    roomy = console.width >= WIDE
    styles = [Intervals.BESIDE] if roomy else [Intervals.NOWHERE]
    if wide and not roomy:
        styles = [Intervals.BELOW, Intervals.STACKED]
    sections = result.sections
    print_sweep(result.swept, console)
    for section in sections:
        if result.swept and not wide:
            print_section_verdicts(section, console)
        else:
            print_section(section, console, styles)
    for line in result.membership.to_lines() if result.membership else ():
        say(line, console=console)
    notes = dict.fromkeys(note for f in result.findings for note in f.notes)
    for note in (*notes, *result.notes):
        say(f"note: {note}", console=console, style="dim")
    for note in view.list_skipped(result.skipped):
        say(f"not tried: {note}", console=console, style="dim")
    if result.swept and not wide:
        say(console=console)
        say(ALL_TABLES, console=console, style="dim")
    elif styles == [Intervals.NOWHERE] and any(has_intervals(section) for section in sections):
        say(LEFT_OUT, console=console, style="dim")
    print_advice(advise(result, frontier), console)


def print_advice(advice: Sequence[Advice], console: Console) -> None:
    """Prints what to do; the model and the data are named where there are several."""
    for each in advice:
        about = f" about {each.model} on {each.data}" if len(advice) > 1 else ""
        say(f"What to do{about}:", console=console, style="bold")
        for line in each.lines:
            say(f"  {line}", console=console)


LEFT_OUT = "note: means only; --wide shows their 95% intervals, --json holds every image's value"
"""Printed if the terminal has no room for intervals."""
ALL_TABLES = "note: --wide shows the tables of all settings, as the page does"
"""Printed below a sweep."""


def print_section(section: Section, console: Console, styles: Sequence[Intervals]) -> None:
    """Prints one table, in the first style that fits, and the verdict on each defense."""
    say(console=console)
    drawn = [build_table(section, style) for style in styles]
    rows = next((each for each in drawn if each.least_width <= console.width), drawn[-1])
    if len(rows):
        say_table(rows, console)
    else:
        say(f"{section.model} on {section.data}", console=console)
        say(section.facts, console=console, style="dim")
    for name, why in sorted({w for f in section.findings for w in f.unavailable.items()}):
        say(f"{name} was not measured: {why}", console=console, style="dim")
    for verdict in section.verdicts:
        print_verdict(verdict, console)
    say(console=console)


def print_section_verdicts(section: Section, console: Console) -> None:
    """Prints the verdicts of a section without its table."""
    say(console=console)
    say(f"{section.model} on {section.data}", console=console)
    for verdict in section.verdicts:
        print_verdict(verdict, console)


def print_verdict(verdict: Verdict, console: Console) -> None:
    """Prints one line, or one for each server, and whether the defense acted.

    Labels are told with the first line.
    """
    for number, each in enumerate(verdict.lines):
        line = plain_text("  ")
        line.append_text(plain_text(f"{label_defense(verdict.defense)}: {each.subject}", "bold"))
        line.append_text(plain_text(each.words, COLOURS[each.status]))
        if verdict.labels is not None and number == 0:
            labels = view.format_value("labels", verdict.labels)
            line.append_text(plain_text(f"; labels inferred: {labels}"))
        say(line, console=console)
    if verdict.acted is not None:
        say(f"    {verdict.acted.words}", console=console, style=ACTED[verdict.acted.status])


def build_table(section: Section, style: Intervals) -> TextTable:
    """Builds one row for each attacker who returned images: means with 95% intervals."""
    shown = section.main_metrics
    table = TextTable(f"{section.model} on {section.data}", caption=section.facts)
    table.add_column("defense", fold=True, at_least=8 if style is Intervals.STACKED else 12)
    longest = max((len(label_attack(f)) for f in section.findings), default=0)
    table.add_column("attack", fold=longest > ATTACK_WIDTH, at_least=ATTACK_WIDTH)
    table.add_column("attacker")
    for metric in shown:
        table.add_column(f"{metric.label} {metric.arrow}", right=True)
    for name, values in section.baselines.items():
        cells = [m.format(values[m.name]) if m.name in values else "" for m in shown]
        table.add_row(f"({name})", "", "", *cells, style="dim")
    last = ""
    for finding in section.findings:
        if not any(m.name in finding.metrics for m in shown):
            continue
        defense = label_defense(finding.defense)
        cells = [format_cell(finding, m, style) for m in shown]
        table.add_row(
            defense if defense != last else "", label_attack(finding), finding.attacker, *cells
        )
        last = defense
    return table


def has_intervals(section: Section) -> bool:
    """Whether any shown mean has an interval."""
    return any(
        view.format_interval(metric, f.metrics[metric.name])
        for f in section.findings
        for metric in section.main_metrics
        if metric.name in f.metrics
    )


def format_cell(finding: Finding, metric: Metric, style: Intervals) -> str:
    """Formats a mean and its interval; empty if the finding does not have the metric."""
    if metric.name not in finding.metrics:
        return ""
    summary = finding.metrics[metric.name]
    mean, interval = metric.format(summary.mean), view.format_interval(metric, summary)
    if not interval or style is Intervals.NOWHERE:
        return mean
    if style is Intervals.STACKED:
        interval = interval.replace(" – ", "–").replace("–", "–\n")
    return f"{mean}{' ' if style is Intervals.BESIDE else chr(10)}[{interval}]"
