"""Where a long attack keeps its state, and who watches it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

Saved = tuple[dict[str, Tensor], dict[str, Any]]


class Checkpointer(Protocol):
    """Given to an attack that takes long; one that does not may ignore it."""

    victims_at_once: int | None
    """How many victims share the device; None: as many as fit."""
    deadline: float | None
    """The ``time.monotonic()`` at which the attack ends with what it has; None: it runs on."""

    def load(self) -> Saved | None:
        """What an earlier, interrupted run of this very attack had saved."""

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Keeps the attack's state; the last one saved counts."""

    def due(self) -> bool:
        """Whether it is time to save again."""

    def watch(self, done: int, total: int, text: str) -> None:
        """Called now and then: iterations done, of how many, and how it goes."""


class NullCheckpointer:
    """A workbench without drawers or windows."""

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
