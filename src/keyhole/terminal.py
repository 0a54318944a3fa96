"""Prints text as it is, without markup and without control characters.

Names, notes and reasons come from users, from files and from clients. Everything that is printed
goes through this module, so that no such text can style or break a terminal. While a command runs,
standard output belongs to Keyhole alone: what other code prints goes to standard error.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = [
    "TextTable",
    "escape_controls",
    "log",
    "plain_text",
    "reserved_stdout",
    "say",
    "say_json",
    "say_table",
    "say_unwrapped",
    "stderr_console",
    "stdout_console",
]

_reserved: list[TextIO] = []
"""Standard output while :func:`reserved_stdout` reserves it for Keyhole; the last one counts."""


def escape_controls(text: object) -> str:
    r"""Returns a text on one line, with escapes for characters that a terminal would act on.

    Args:
        text: Anything that can be printed.

    >>> escape_controls("a\x1b[31m [/b]\n")
    'a\\x1b[31m [/b]\\n'
    """
    return "".join(c if _is_printable(c) else _escape(c) for c in str(text))


def _is_printable(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def plain_text(text: object, style: str = "") -> Text:
    """Returns rich text that shows a text as it is: brackets are not markup.

    Args:
        text: Anything that can be printed.
        style: A style of rich: ``bold``, ``red``.
    """
    return Text(escape_controls(text), style=style)


class TextTable:
    """A table of plain text.

    Args:
        title: A line above the table.
        caption: A line below it.
    """

    def __init__(self, title: str = "", *, caption: str = "") -> None:
        self.table = Table(
            title=plain_text(title, "italic") if title else None,
            caption=plain_text(caption, "dim italic") if caption else None,
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),
            title_justify="left",
            caption_justify="left",
        )
        self.least_widths: list[int] = []

    def add_column(
        self, name: str, *, right: bool = False, fold: bool = False, at_least: int | None = None
    ) -> None:
        """Adds a column.

        Args:
            name: Its heading.
            right: Whether cells are aligned to the right.
            fold: Whether long cells are broken into several lines; otherwise they stay whole.
            at_least: The smallest width, in letters.
        """
        self.table.add_column(
            plain_text(name),
            justify="right" if right else "left",
            no_wrap=not fold,
            overflow="fold" if fold else "ellipsis",
            min_width=at_least,
        )
        self.least_widths.append(max(at_least or 1, 1 if fold else cell_len(name)))

    @property
    def least_width(self) -> int:
        """The width below which cells would be cut; for a folded column ``at_least`` counts."""
        return sum(self.least_widths) + 2 * len(self.least_widths) + 1

    def add_row(self, *cells: str, style: str | None = None) -> None:
        """Adds a row.

        Args:
            cells: The texts of its cells; they may contain line breaks.
            style: A style of rich.
        """
        lines = [[plain_text(line) for line in cell.split("\n")] for cell in cells]
        self.table.add_row(*(Text("\n").join(cell) for cell in lines), style=style)
        for number, (column, cell) in enumerate(zip(self.table.columns, lines, strict=False)):
            if column.no_wrap:
                widest = max(line.cell_len for line in cell)
                self.least_widths[number] = max(self.least_widths[number], widest)

    def __len__(self) -> int:
        return self.table.row_count


def stdout_console() -> Console:
    """Returns a console on Keyhole's standard output."""
    return Console(file=_stdout(), highlight=False)


def stderr_console() -> Console:
    """Returns a console on standard error."""
    return Console(stderr=True, highlight=False)


def say(*parts: str | Text, console: Console | None = None, style: str = "") -> None:
    """Prints one line of text, wrapped at words.

    Args:
        parts: What the line consists of; nothing gives an empty line.
        console: Where to print; None means standard output.
        style: A style of rich.
    """
    (console or stdout_console()).print(_join(parts, style))


def say_unwrapped(*parts: str | Text, console: Console | None = None, style: str = "") -> None:
    """Prints one line that is never broken, such as a path to copy.

    Args:
        parts: What the line consists of.
        console: Where to print; None means standard output.
        style: A style of rich.
    """
    (console or stdout_console()).print(_join(parts, style), soft_wrap=True)


def say_table(table: TextTable, console: Console | None = None) -> None:
    """Prints a table; one that is wider than the terminal gets longer lines and is not cut.

    Args:
        table: The table.
        console: Where to print; None means standard output.
    """
    console = console or stdout_console()
    room = console.width
    console.width = max(room, table.least_width)
    try:
        console.print(table.table, crop=False)
    finally:
        console.width = room


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Prints one JSON object.

    Args:
        value: What JSON can hold.
        indent: Spaces per level; None means one line.
    """
    print(json.dumps(value, allow_nan=False, indent=indent), file=_stdout(), flush=True)


def log(text: str) -> None:
    """Prints one line on standard error.

    Args:
        text: The line.
    """
    print(escape_controls(text), file=sys.stderr, flush=True)


def _join(parts: tuple[str | Text, ...], style: str) -> Text:
    line = Text(style=style)
    for part in parts:
        line.append_text(part if isinstance(part, Text) else plain_text(part))
    return line


def _stdout() -> TextIO:
    return _reserved[-1] if _reserved else sys.stdout


@contextmanager
def reserved_stdout() -> Iterator[None]:
    """Reserves standard output for this module; what others print goes to standard error."""
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(_own_stdout(sys.stdout))
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        _reserved.append(own)
        stack.callback(_reserved.pop)
        yield


@contextmanager
def _own_stdout(stdout: TextIO) -> Iterator[TextIO]:
    """Opens a stream to where ``stdout`` leads; meanwhile descriptor 1 leads to standard error."""
    if not _is_descriptor(stdout, 1) or not _is_descriptor(sys.stderr, 2):
        yield stdout
        return
    stdout.flush()
    original = os.dup(1)
    os.dup2(2, 1)
    try:
        with open(
            os.dup(original), "w", encoding=stdout.encoding, errors="backslashreplace"
        ) as own:
            yield own
    finally:
        os.dup2(original, 1)
        os.close(original)


def _is_descriptor(stream: TextIO | None, number: int) -> bool:
    """Whether ``stream`` writes to that descriptor; captured and closed streams do not."""
    try:
        return stream is not None and stream.fileno() == number
    except (OSError, ValueError):
        return False
