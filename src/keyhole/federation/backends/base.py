"""What every backend that trains the clients of a round can do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import nn

from keyhole.defenses.base import Defense, Telemetry
from keyhole.federation.client import RoundClient
from keyhole.federation.training import LocalTraining
from keyhole.update import Update


class Backend(Protocol):
    """Trains several clients of a round; all backends agree to float tolerance."""

    def supports(
        self, model: nn.Module, sizes: Sequence[int], training: LocalTraining, defense: Defense
    ) -> bool:
        """Returns whether this backend can train clients that have ``sizes`` images each."""

    def clients_at_once(self, model: nn.Module) -> int:
        """Returns how many clients are trained at the same time."""

    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        """Returns each client's update under ``defense``, and what the defense reports."""
