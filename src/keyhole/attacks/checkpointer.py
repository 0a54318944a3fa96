"""Where a long attack saves its state and reports its progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

Saved = tuple[dict[str, Tensor], dict[str, Any]]


class Checkpointer(Protocol):
    """Saves and restores the state of a long attack; a short attack may ignore it."""

    victims_at_once: int | None
    """How many victims share the device; None: as many as fit."""
    deadline: float | None
    """The ``time.monotonic()`` at which the attack stops with what it has; None: no limit."""

    def load(self) -> Saved | None:
        """Returns what an earlier, interrupted run of this very attack saved, if there is any."""

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Saves the attack's state in place of the one saved before.

        Args:
            tensors: The state's tensors, by name.
            facts: The rest of the state, as JSON can hold it.
        """

    def due(self) -> bool:
        """Whether it is time to save again."""

    def watch(self, done: int, total: int, text: str) -> None:
        """Reports progress; attacks call it now and then.

        Args:
            done: Iterations done.
            total: Iterations in all.
            text: How the attack is doing, in a few words.
        """


class NullCheckpointer:
    """Saves nothing and reports nothing."""

    victims_at_once: int | None = None
    deadline: float | None = None

    def load(self) -> Saved | None:
        return None

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        pass

    def due(self) -> bool:
        return False

    def watch(self, done: int, total: int, text: str) -> None:
        pass
