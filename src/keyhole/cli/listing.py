"""``keyhole list``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from keyhole.cli.shared import Json
from keyhole.interrupts import INTERRUPTS
from keyhole.terminal import TextTable, plain_text, say, say_json, say_table, say_unwrapped

KINDS = "attacks, membership, defenses, models, data, metrics"
FACTS = {
    "paper": "Paper",
    "needs": "Needs",
    "is_given": "Is given",
    "adapts_to": "Adapts to",
    "declares": "Declares to an attacker who knows it",
    "alters_model": "Alters the model",
    "more is seen when": "More is seen when it is",
    "required": "Must be given",
    "from": "From",
}
"""What is printed about a part besides its summary: the keys and their headings."""


def list_all(
    kind: Annotated[str | None, typer.Argument(metavar="[PART]", help=f"One of: {KINDS}.")] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One of its entries, in detail.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List attacks, defenses, models, data sets and metrics, or describe one of them."""
    with INTERRUPTS.leaving_at_once():
        from keyhole.report.catalogue import build_catalogue
        from keyhole.report.details import describe_entry, list_entries
    if kind is not None and name is not None:
        entry = describe_entry(kind, name)
        say_json(entry, indent=1) if as_json else print_entry(entry)
        return
    lists = build_catalogue() if kind is None else {kind: list_entries(kind)}
    if as_json:
        say_json(lists, indent=1)
        return
    for each, entries in lists.items():
        print_list(each, entries)
    say_unwrapped("More on each: keyhole list PART NAME, such as keyhole list defenses gaussian")


def print_list(kind: str, entries: list[dict[str, Any]]) -> None:
    """Prints a table of names and summaries."""
    say(kind, style="bold")
    table = TextTable()
    table.add_column("name")
    table.add_column("what it is", fold=True)
    for entry in entries:
        origin = f" (from {entry['from']})" if "from" in entry else ""
        table.add_row(entry["name"], f"{entry['summary']}{origin}")
    say_table(table)


def print_entry(entry: dict[str, Any]) -> None:
    """Prints everything that is known about one part."""
    say(plain_text(entry["name"], "bold"), f": {entry['summary']}")
    for key, title in FACTS.items():
        value = entry.get(key)
        if value:
            words = ", ".join(value) if isinstance(value, list) else str(value)
            say(plain_text(f"{title}: ", "bold"), words)
    for paragraph in entry.get("description", "").split("\n\n"):
        if paragraph:
            say()
            say(" ".join(paragraph.split()))
    if entry.get("parameters"):
        say()
        say("Parameters, with their defaults and the values that they may have:", style="bold")
        table = TextTable()
        table.add_column("default", fold=True, at_least=16)
        table.add_column("may be", fold=True)
        for name, value in entry["parameters"].items():
            table.add_row(f"{name}={value!r}", entry["allowed"].get(name, ""))
        say_table(table)
