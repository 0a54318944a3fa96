"""The audit on a terminal."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from keyhole.audit.finding import Finding
from keyhole.audit.run import AuditResult
from keyhole.report import view

SHOWN = ("psnr", "ssim", "lpips", "reid", "read")


WIDE = 110
"""Columns from which a terminal has room for intervals."""


def print_result(result: AuditResult, console: Console) -> None:
    """A table for each model and data set, then the verdicts."""
    for section in view.sections(result):
        rows = table(section, wide=console.width >= WIDE)
        console.print(rows if rows.row_count else f"\n{section.model} on {section.data}")
        for name, why in {w for f in section.findings for w in f.unavailable.items()}:
            console.print(Text(f"{name} was not measured: {why}", style="dim"))
        for verdict in section.verdicts:
            line = Text("  ")
            line.append(f"{view.defense_name(verdict.defense)}: ", style="bold")
            line.append(verdict.words, style="red" if verdict.status == "broken" else "cyan")
            if verdict.labels is not None:
                line.append(f"; labels inferred: {view.number('labels', verdict.labels)}")
            console.print(line)
        console.print()
    for note in dict.fromkeys(note for f in result.findings for note in f.notes):
        console.print(Text(f"note: {note}", style="dim"))
    for note in result.notes:
        console.print(Text(f"note: {note}", style="dim"))
    for note in view.skipped_lines(result.skipped):
        console.print(Text(f"not tried: {note}", style="dim"))


def table(section: view.Section, *, wide: bool) -> Table:
    """One row an attacker who returned images; means, and 95% intervals where there is room."""
    shown = [m for m in section.metrics if m.name in SHOWN]
    made = Table(
        title=f"\n{section.model} on {section.data}",
        caption=section.facts,
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        title_justify="left",
        caption_justify="left",
    )
    made.add_column("defense", overflow="fold", min_width=12)
    made.add_column("attack", overflow="fold", min_width=11)
    made.add_column("attacker", no_wrap=True)
    for metric in shown:
        made.add_column(f"{metric.label} {metric.arrow}", justify="right", no_wrap=True)
    for name, values in section.baselines.items():
        cells = [view.number(m.name, values[m.name]) if m.name in values else "" for m in shown]
        made.add_row(f"({name})", "", "", *cells, style="dim")
    last = ""
    for finding in section.findings:
        if not any(m.name in finding.metrics for m in shown):
            continue
        defense = view.defense_name(finding.defense)
        cells = [cell(finding, m.name, wide=wide) for m in shown]
        made.add_row(
            defense if defense != last else "", view.attack_name(finding), finding.attacker, *cells
        )
        last = defense
    return made


def cell(finding: Finding, metric: str, *, wide: bool) -> str:
    if metric not in finding.metrics:
        return ""
    summary = finding.metrics[metric]
    between = view.interval(metric, summary) if wide else ""
    return f"{view.number(metric, summary.mean)}{f' [{between}]' if between else ''}"
