"""One bar for all workers."""

from __future__ import annotations

from keyhole.progress import Progress

SHOWN = 3
"""Pieces at work that are named; of more, only the number is shown."""


class Board:
    """Where each piece at work stands, shown together.

    Args:
        progress: Shows how many pieces are finished, and what is at work.
        places: What the workers are called: ``on Ray``; empty: this machine.
    """

    def __init__(self, progress: Progress, places: str = "") -> None:
        self.progress, self.places = progress, places
        self.at_work: dict[str, tuple[str, float, str]] = {}

    def report(self, key: str, title: str, share: float, text: str) -> None:
        """Notes where a piece stands.

        Args:
            key: The piece's key.
            title: What people call it.
            share: How much of it is done, in [0, 1].
            text: What is being done.
        """
        if key not in self.at_work or self.at_work[key] != (title, share, text):
            self.at_work[key] = (title, share, text)
            self.show()

    def finish(self, key: str) -> None:
        """Counts a piece as finished.

        Args:
            key: The piece's key.
        """
        self.at_work.pop(key, None)
        self.progress.advance(1)

    def drop(self, key: str) -> None:
        """Forgets a piece whose worker is lost.

        Args:
            key: The piece's key.
        """
        self.at_work.pop(key, None)

    def show(self) -> None:
        """Shows all pieces at work in one line, and how much of them is done in the other."""
        pieces = list(self.at_work.values())
        if len(pieces) == 1:
            title, _, text = pieces[0]
            words = f"{title}: {text}" if text else title
        else:
            named = ", ".join(f"{title} {share:.0%}" for title, share, _ in pieces[:SHOWN])
            more = f" and {len(pieces) - SHOWN} more" if len(pieces) > SHOWN else ""
            words = f"{len(pieces)} at work{self.places and f' {self.places}'}: {named}{more}"
        self.progress.show(words)
        share = sum(share for _, share, _ in pieces) / len(pieces)
        self.progress.complete(share, "the piece at work" if len(pieces) == 1 else "those at work")
