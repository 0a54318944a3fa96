"""Handles Ctrl-C when nothing is lost by it, or at once where it is pressed again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_CODE = 130
"""The exit code of a process that Ctrl-C ended, as in shells."""
WAITING = b"\nkeyhole: writing down where the attack stands; Ctrl-C again leaves at once\n"


class Interrupts:
    """The state of Ctrl-C in this process: whether it was pressed, and who handles it when."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed and is not handled yet."""
        self.deferred_by = 0
        self.leaves_at_once = False
        self.last_words: Callable[[], None] = lambda: None
        """Called before the process ends at once, to print what the user should know."""
        self.process = 0

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handles Ctrl-C instead of Python; does nothing outside the main thread."""
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
        """The signal handler: raises KeyboardInterrupt, unless that is deferred."""
        if os.getpid() != self.process:  # a child process: its parent ends it
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
        """Inside the block Ctrl-C ends the process at once, since no work has begun.

        For imports: an exception inside one may be lost, or leave a library half imported.
        """
        before, self.leaves_at_once = self.leaves_at_once, True
        try:
            yield
        finally:
            self.leaves_at_once = before

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Inside the block Ctrl-C waits until :meth:`check`, which must be called now and then."""
        self.deferred_by += 1
        try:
            yield
        finally:
            self.deferred_by -= 1

    def check(self) -> None:
        """Raises KeyboardInterrupt if Ctrl-C was pressed."""
        if self.asked:
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()
