"""How long work reports its progress."""

from __future__ import annotations

from typing import Protocol

__all__ = ["NullProgress", "Progress"]


class Progress(Protocol):
    """Receives reports of how much work there is and how much of it is done."""

    def begin(self, total: int) -> None:
        """Starts the work.

        Args:
            total: Units of work: images, or clients that are trained or attacked.
        """

    def show(self, what: str) -> None:
        """Says what is being done.

        Args:
            what: A few words.
        """

    def advance(self, units: int) -> None:
        """Counts more work as done.

        Args:
            units: How much.
        """

    def iterate(self, done: int, total: int, text: str) -> None:
        """Says how far a long attack is.

        Args:
            done: Iterations done.
            total: All its iterations.
            text: A few words about them.
        """

    def complete(self, share: float, text: str) -> None:
        """Says how much of what is being done is complete.

        Args:
            share: How much, in [0, 1].
            text: What that is a share of.
        """


class NullProgress(Progress):
    """Ignores all reports."""

    def begin(self, total: int) -> None:
        pass

    def show(self, what: str) -> None:
        pass

    def advance(self, units: int) -> None:
        pass

    def iterate(self, done: int, total: int, text: str) -> None:
        pass

    def complete(self, share: float, text: str) -> None:
        pass
