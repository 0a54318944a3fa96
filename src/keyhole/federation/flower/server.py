"""Strategies with the eyes of a curious server."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from keyhole.data.normalisation import as_facts
from keyhole.errors import DoesNotFit, one_line
from keyhole.federation.capture import LIMIT_GB, Recorder, RoundWriter
from keyhole.federation.flower.messages import Tensors, reply_of

log = logging.getLogger("keyhole")


def curious(strategy: type[Any]) -> type[Any]:
    """The strategy class, with eyes: it writes down every round and is otherwise as it was.

    The class takes some keywords more: ``capture``, the folder; ``limit_gb``, the disk it may use;
    ``mean`` and ``std``, by which clients normalise pixels in [0, 1], so that an audit need not
    assume them; ``about``, what else a reader should know of the run; ``fresh=True`` replaces what
    an earlier run left in the folder, which is refused otherwise. Wrap the outermost strategy:
    inside a server-side differential privacy wrapper only clipped updates are seen.

    Whatever clients send and whatever becomes of the disk, the strategy returns and raises what it
    would without: a reply, or a round, that cannot be written down is left out with a warning.
    """
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise DoesNotFit("curious() takes a class of flwr.serverapp.strategy, such as FedAvg")

    class Curious(strategy):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            capture: str | Path,
            limit_gb: float = LIMIT_GB,
            mean: float | Sequence[float] | None = None,
            std: float | Sequence[float] | None = None,
            about: dict[str, Any] | None = None,
            fresh: bool = False,
            **keywords: Any,
        ) -> None:
            super().__init__(*args, **keywords)
            self.recorder = Recorder(
                Path(capture),
                limit_gb=limit_gb,
                about={**(about or {}), **as_facts(mean, std)},
                fresh=fresh,
                resume=False,
            )
            self.sent: Tensors = {}
            self.told: dict[str, Any] = {}

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            self.sent = tensors_of(arrays, server_round)  # before the strategy may change them
            messages = super().configure_train(server_round, arrays, config, grid)
            self.told = dict(config)  # with what the strategy has added to it
            return messages  # type: ignore[no-any-return]

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen = list(replies)
            write_round(self.recorder, server_round, self.sent, self.told, seen)
            return super().aggregate_train(server_round, seen)

    Curious.__name__ = Curious.__qualname__ = f"Curious{strategy.__name__}"
    return Curious


def tensors_of(arrays: ArrayRecord, number: int) -> Tensors:
    """The weights that a server sends; none, with a warning, where they cannot be read."""
    try:
        return dict(arrays.to_torch_state_dict())
    except Exception as error:  # noqa: BLE001  the strategy must not notice
        log.warning("the weights of round %d cannot be captured: %s", number, one_line(error))
        return {}


def write_round(
    recorder: Recorder,
    number: int,
    sent: Tensors,
    config: dict[str, Any],
    replies: Iterable[Message],
) -> None:
    """Writes one round down, one reply after another; never raises."""
    try:
        writer = recorder.begin(number, sent, config=config)
        for message in replies:
            write_reply(writer, sent, message)
        writer.close()
    except Exception as error:  # noqa: BLE001  the strategy must not notice
        recorder.leave_out(number, one_line(error))


def write_reply(writer: RoundWriter, sent: Tensors, message: Message) -> None:
    """Writes what one client sent, or why that cannot be written."""
    node = str(message.metadata.src_node_id)
    if message.has_error():
        writer.lose(node, str(message.error.reason))
        return
    try:
        reply = reply_of(sent, message)
    except Exception as error:  # noqa: BLE001  whatever a client sends costs only that client
        writer.leave_out(node, one_line(error))
        return
    writer.add(reply)
