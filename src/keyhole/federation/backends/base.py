"""What every backend that trains the clients of a round can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import nn

from keyhole.defenses.base import Defense, Telemetry
from keyhole.federation.client import RoundClient
from keyhole.federation.training import LocalTraining
from keyhole.update import Update


class Backend(ABC):
    """Trains several clients of a round; all backends agree to float tolerance."""

    @abstractmethod
    def supports(
        self, model: nn.Module, sizes: Sequence[int], training: LocalTraining, defense: Defense
    ) -> bool:
        """Returns whether this backend can train these clients.

        Args:
            model: The global model.
            sizes: The number of images of each client.
            training: How each client trains.
            defense: The defense of every client.
        """

    @abstractmethod
    def clients_at_once(self, model: nn.Module) -> int:
        """Returns how many clients are trained at the same time.

        Args:
            model: The global model.
        """

    @abstractmethod
    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        """Returns each client's update, and what its defense reports.

        Args:
            model: The global model, which is not changed.
            clients: The clients.
            defense: The defense of every client.
        """
