"""How long work reports its progress."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Is told how much work there is and how much of it is done."""

    def begin(self, total: int) -> None:
        """Starts work of ``total`` units: images, or clients that are trained or attacked."""

    def show(self, what: str) -> None:
        """Says what is being done."""

    def advance(self, units: int) -> None:
        """Counts ``units`` more as done."""

    def iterate(self, done: int, total: int, text: str) -> None:
        """Says how far a long attack is: its iterations, and a text about them."""


class NullProgress:
    """Ignores all reports."""

    def begin(self, total: int) -> None:
        pass

    def show(self, what: str) -> None:
        pass

    def advance(self, units: int) -> None:
        pass

    def iterate(self, done: int, total: int, text: str) -> None:
        pass
