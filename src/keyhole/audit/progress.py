"""How a long audit lets others watch it."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told how much there is to do and how much is done; units are victims trained or attacked."""

    def begin(self, total: int) -> None: ...

    def show(self, what: str) -> None: ...

    def advance(self, units: int) -> None: ...

    def iterate(self, done: int, total: int, text: str) -> None:
        """A long attack's own progress: its iterations, and how it goes."""


class Silent:
    """Watches nothing."""

    def begin(self, total: int) -> None:
        pass

    def show(self, what: str) -> None:
        pass

    def advance(self, units: int) -> None:
        pass

    def iterate(self, done: int, total: int, text: str) -> None:
        pass
