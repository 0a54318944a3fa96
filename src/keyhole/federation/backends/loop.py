"""Trains the clients of a round one after another: the reference for all other backends."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from keyhole.defenses.base import Defense, Telemetry
from keyhole.federation.backends.base import Backend
from keyhole.federation.client import RoundClient, train_client
from keyhole.federation.training import LocalTraining
from keyhole.update import Update


class LoopTrainer(Backend):
    """Trains one client at a time; supports every model and every defense."""

    def supports(
        self, model: nn.Module, sizes: Sequence[int], training: LocalTraining, defense: Defense
    ) -> bool:
        """Returns True."""
        return True

    def clients_at_once(self, model: nn.Module) -> int:
        """Returns 1."""
        return 1

    def train(
        self, model: nn.Module, clients: Sequence[RoundClient], *, defense: Defense
    ) -> list[tuple[Update, Telemetry]]:
        return [
            train_client(
                model,
                client.images,
                client.labels,
                data=client.data,
                defense=defense,
                generator=client.generator,
                training=client.training,
                memory=client.memory,
                images_by_epoch=client.images_by_epoch,
            )
            for client in clients
        ]
