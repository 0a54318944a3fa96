"""Ctrl-C at a moment when nothing is lost, and at once where it is pressed again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
"""Of a process that Ctrl-C ended, as shells have it."""
WAITING = b"\nkeyhole: writing down where the attack stands; Ctrl-C again leaves at once\n"


class Interrupts:
    """What became of Ctrl-C in this process: at most one is waiting to be dealt with."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed; whoever defers it looks here now and then."""
        self.deferred_by = 0
        self.leaves_at_once = False
        self.last_words: Callable[[], None] = lambda: None
        """Called before the process ends at once; prints what the user should know."""
        self.process = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Takes Ctrl-C over from Python; elsewhere than in the main thread, leaves it as it is."""
        before = signal.getsignal(signal.SIGINT)
        in_main_thread = threading.current_thread() is threading.main_thread()
        if not in_main_thread or before is not signal.default_int_handler:
            yield
            return
        self.asked, self.process = False, os.getpid()
        signal.signal(signal.SIGINT, self.receive)
        try:
            yield
        finally:
            self.asked = False
            signal.signal(signal.SIGINT, before)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: raises KeyboardInterrupt, unless somebody promised to look."""
        if os.getpid() != self.process:  # a child: its parent tells it
            return
        if self.leaves_at_once:
            self.last_words()
        if self.asked or self.leaves_at_once:
            os._exit(EXIT_CODE)
        self.asked = True
        if not self.deferred_by:
            raise KeyboardInterrupt
        os.write(2, WAITING)  # no buffer is safe to use here

    @contextmanager
    def leaving_at_once(self) -> Iterator[None]:
        """Ends the process where Ctrl-C is pressed, since no work has begun.

        For imports: an exception inside one may be lost, or leave half a library behind.
        """
        before, self.leaves_at_once = self.leaves_at_once, True
        try:
            yield
        finally:
            self.leaves_at_once = before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Promises to call :meth:`check` now and then; until then, Ctrl-C waits."""
        self.deferred_by += 1
        try:
            yield
        finally:
            self.deferred_by -= 1

    def check(self) -> None:
        """Raises KeyboardInterrupt where Ctrl-C is waiting."""
        if self.asked:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()
