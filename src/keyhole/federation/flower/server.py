"""Strategies with the eyes of a curious server."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from keyhole.errors import DoesNotFit
from keyhole.federation.capture import LIMIT_GB, Recorder
from keyhole.federation.flower.messages import Tensors, reply_of


def curious(strategy: type[Any]) -> type[Any]:
    """The strategy class, with eyes: it writes down every round and is otherwise as it was.

    The class takes two or three keywords more: ``capture``, the folder; ``limit_gb``, the disk it
    may use; ``about``, what a reader should know of the run. Wrap the outermost strategy: inside a
    server-side differential privacy wrapper only clipped updates are seen.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise DoesNotFit("curious() takes a class of flwr.serverapp.strategy, such as FedAvg")

    class Curious(strategy):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            capture: str | Path,
            limit_gb: float = LIMIT_GB,
            about: dict[str, Any] | None = None,
            **keywords: Any,
        ) -> None:
            super().__init__(*args, **keywords)
            self.recorder = Recorder(Path(capture), limit_gb=limit_gb, about=about)
            self.sent: Tensors = {}
            self.told: dict[str, Any] = {}

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            self.sent = arrays.to_torch_state_dict()
            messages = super().configure_train(server_round, arrays, config, grid)
            self.told = dict(config)  # with what the strategy has added to it
            return messages  # type: ignore[no-any-return]

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen = list(replies)
            self.recorder.round(
                server_round,
                self.sent,
                [reply_of(self.sent, message) for message in seen if not message.has_error()],
                config=self.told,
                lost={
                    str(message.metadata.src_node_id): str(message.error.reason)
                    for message in seen
                    if message.has_error()
                },
            )
            return super().aggregate_train(server_round, seen)

    Curious.__name__ = Curious.__qualname__ = f"Curious{strategy.__name__}"
    return Curious
