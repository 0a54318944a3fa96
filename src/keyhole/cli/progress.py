"""Shows progress on standard error: bars on a terminal, otherwise a line now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from keyhole.terminal import log, plain_text, stderr_console

Clock = Callable[[], float]

SECONDS_BETWEEN_LINES = 30.0
"""How often a line is printed if standard error is not a terminal."""

BAR_WIDTH = 16


class Pace:
    """How much of the work is done, and how long the rest takes at the pace so far."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.begin(None)

    def begin(self, total: int | None) -> None:
        self.total, self.done = total, 0
        self.began_at: float | None = None
        self.began_with = 0

    def start_clock(self) -> None:
        """Starts the clock; what an earlier run has done took no time."""
        if self.began_at is None:
            self.began_at, self.began_with = self.clock(), self.done

    def skip(self, units: int) -> None:
        """Counts work of an earlier run as done."""
        self.done += units
        self.began_with += units

    def reach(self, done: int, total: int) -> None:
        """Sets both; starts again if less is done than before, or if the total differs."""
        if total != self.total or done < self.done:
            self.begin(total)
        self.done = done
        self.start_clock()

    def seconds_left(self) -> float | None:
        """The time that the rest takes; None if it is not known yet."""
        if self.total is None or self.began_at is None or self.done <= self.began_with:
            return None
        per_unit = (self.clock() - self.began_at) / (self.done - self.began_with)
        return per_unit * max(0, self.total - self.done)


PERCENT = "%"


class Bar:
    """The progress of long work: of all of it, and of the attack or the pieces at work."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.whole, self.attack = Pace(clock), Pace(clock)
        self.text, self.attack_text, self.unit = "preparing", "", "iterations"

    def begin(self, total: int) -> None:
        self.whole.begin(total)

    def show(self, what: str) -> None:
        self.text = what
        self.whole.start_clock()
        self.attack.begin(None)

    def advance(self, units: int) -> None:
        self.whole.done += units

    def skip(self, units: int) -> None:
        """Counts units that an earlier run has done."""
        self.whole.skip(units)

    def iterate(self, done: int, total: int, text: str) -> None:
        self.attack_text, self.unit = text, "iterations"
        self.attack.reach(done, total)

    def complete(self, share: float, text: str) -> None:
        self.attack_text, self.unit = text, PERCENT
        self.attack.reach(round(100 * share), 100)

    def seconds_left(self) -> float | None:
        """The time that all of it takes; at least that of the running attack."""
        known = [s for s in (self.whole.seconds_left(), self.attack.seconds_left()) if s]
        return max(known, default=None)


def build_rows(bar: Bar) -> Table:
    """Builds the rows: time left, bar and count; the text gets the remaining width."""
    grid = Table.grid(padding=(0, 1, 0, 0), expand=True)
    for _ in range(3):
        grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    add_row(grid, bar.whole, bar.seconds_left(), bar.text)
    if bar.attack.total is not None:
        add_row(grid, bar.attack, bar.attack.seconds_left(), describe_part(bar))
    return grid


def describe_part(bar: Bar) -> str:
    """What the second bar counts."""
    of = " of" if bar.unit == PERCENT else ":"
    return f"{bar.unit}{of} {bar.attack_text}"


def add_row(grid: Table, pace: Pace, left: float | None, text: str) -> None:
    grid.add_row(
        plain_text(format_duration(left), "cyan"),
        ProgressBar(pace.total, pace.done, width=BAR_WIDTH, pulse=pace.total is None),
        plain_text(f"{pace.done}/{'?' if pace.total is None else pace.total}", "green"),
        plain_text(text),
    )


def format_duration(seconds: float | None) -> str:
    """Formats hours, minutes and seconds at a fixed width.

    >>> format_duration(3723.4), format_duration(None)
    ('1:02:03', '-:--:--')
    """
    if seconds is None:
        return "-:--:--"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def format_line(bar: Bar) -> str:
    """Formats a line for a log: the work, how much of it is done, and the time left."""
    parts = [bar.text]
    if bar.whole.total is not None:
        parts.append(f"{bar.whole.done} of {bar.whole.total} done")
    if bar.attack.total is not None:
        counted = f"iteration {bar.attack.done} of {bar.attack.total}"
        share = f"{bar.attack.done}% of {bar.attack_text}"
        parts.append(share if bar.unit == PERCENT else counted)
    left = bar.seconds_left()
    if left is not None:
        parts.append(f"{format_duration(left)} left")
    else:
        whole = bar.whole.total is not None and bar.whole.done >= bar.whole.total
        parts.append("finishing up" if whole else "time left not known yet")
    return f"keyhole: {'; '.join(parts)}"


@contextmanager
def show_progress() -> Iterator[Bar]:
    """Shows the progress of the work inside the block; removes it at the end."""
    bar, console = Bar(), stderr_console()
    with draw_rows(console, bar) if console.is_terminal else print_lines(bar):
        yield bar


@contextmanager
def draw_rows(console: Console, bar: Bar) -> Iterator[None]:
    with Live(get_renderable=lambda: build_rows(bar), console=console, transient=True):
        yield


@contextmanager
def print_lines(bar: Bar) -> Iterator[None]:
    """Prints a line at regular times, as long as standard error accepts it."""
    finished = threading.Event()

    def print_regularly() -> None:
        while not finished.wait(SECONDS_BETWEEN_LINES):
            try:
                log(format_line(bar))
            except (OSError, ValueError):  # nobody reads standard error any more
                return

    printer = threading.Thread(target=print_regularly, daemon=True)
    printer.start()
    try:
        yield
    finally:
        finished.set()
        printer.join()
