"""Prints a frontier on the terminal."""

from __future__ import annotations

from rich.console import Console

from keyhole.auditing.verdict import BROKEN
from keyhole.frontier.result import FrontierResult
from keyhole.frontier.words import PROMISE, describe_frontier, summarise
from keyhole.report.console import COLOURS, WIDE
from keyhole.report.frontier_view import FRONT, SettingLine, describe_facts, list_settings
from keyhole.terminal import TextTable, say, say_table, stdout_console


def print_frontier(result: FrontierResult, console: Console | None = None) -> None:
    """Prints a table of all settings, then what to do.

    Args:
        result: The frontier.
        console: Where to print; None means standard output.
    """
    console = console or stdout_console()
    say(console=console)
    say_table(build_table(result, roomy=console.width >= WIDE), console)
    say(summarise(result), console=console, style="bold")
    words = describe_frontier(result)
    for heading, key in (
        ("What to do", "held"),
        ("Searches", "searched"),
        ("What was not tried", "not_tried"),
    ):
        if words[key]:
            say(f"{heading}:", console=console, style="bold")
        for line in words[key]:
            say(f"  {line}", console=console)
    say(PROMISE, console=console, style="dim")
    if console.width < WIDE:
        say(
            "note: means only; the page and --json hold the intervals", console=console, style="dim"
        )
    say(console=console)


def build_table(result: FrontierResult, *, roomy: bool) -> TextTable:
    """Builds one row for each setting; a star marks the front."""
    plan = result.plan
    caption = f"{describe_facts(result)}; * on the front"
    table = TextTable(f"{plan.model} on {plan.data}", caption=caption)
    table.add_column("setting", fold=True, at_least=12)
    for name in ("accuracy", "points", "read"):
        table.add_column(name, right=True)
    table.add_column("by", fold=True, at_least=10)
    table.add_column("s/round", right=True)
    for line in list_settings(result):
        star = "*" if line.place == FRONT else ""
        cells = [join(pair, roomy=roomy) for pair in (line.accuracy, line.points, line.read)]
        table.add_row(
            f"{line.label}{star}", *cells, line.by or "nobody", line.seconds, style=style_of(line)
        )
    return table


def style_of(line: SettingLine) -> str | None:
    """The colour of a row: that of its verdict, unless the setting was broken."""
    return None if line.status == BROKEN else COLOURS[line.status]


def join(pair: tuple[str, str], *, roomy: bool) -> str:
    """A value, with its interval where the terminal has room for it."""
    value, interval = pair
    return f"{value} [{interval}]" if interval and roomy else value
