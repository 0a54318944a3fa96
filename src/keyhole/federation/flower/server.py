"""Strategies of a curious server, which captures what clients send."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from keyhole.errors import DoesNotFit, one_line
from keyhole.federation.capture import LIMIT_GB, CaptureWriter, RoundWriter
from keyhole.federation.flower.messages import Tensors, read_reply
from keyhole.mean_and_std import normalisation_entries

log = logging.getLogger("keyhole")


def curious(strategy: type[Any]) -> type[Any]:
    """Returns a strategy class that captures every round and otherwise behaves as before.

    The class takes these keywords besides its own:

    * ``capture``: the folder to write to;
    * ``limit_gb``: the disk space that it may use, in gigabytes;
    * ``mean`` and ``std``: how clients normalise pixels in [0, 1], so that an audit need not guess;
    * ``about``: what else a reader should know of the run;
    * ``fresh=True``: replace an earlier run's capture, which is refused otherwise.

    Wrap the outermost strategy: inside a server-side differential privacy wrapper only clipped
    updates are seen. Whatever clients send and whatever happens to the disk, the strategy returns
    and raises what it would without a capture: a reply, or a round, that cannot be written is left
    out with a warning.

    Args:
        strategy: A class of ``flwr.serverapp.strategy``, such as ``FedAvg``.
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
            self.capture_writer = CaptureWriter(
                Path(capture),
                limit_gb=limit_gb,
                about={**(about or {}), **normalisation_entries(mean, std)},
                fresh=fresh,
                resume=False,
            )
            self.sent_weights: Tensors = {}
            self.sent_config: dict[str, Any] = {}

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            # Before the strategy may change them.
            self.sent_weights = read_global_weights(arrays, server_round)
            messages = super().configure_train(server_round, arrays, config, grid)
            self.sent_config = dict(config)  # with what the strategy has added to it
            return messages  # type: ignore[no-any-return]

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            seen = list(replies)
            self.capture_round(server_round, seen)
            return super().aggregate_train(server_round, seen)

        def capture_round(self, server_round: int, replies: Sequence[Message]) -> None:
            sent, config = self.sent_weights, self.sent_config
            write_round(self.capture_writer, server_round, sent, config, replies)

    Curious.__name__ = Curious.__qualname__ = f"Curious{strategy.__name__}"
    return Curious


def read_global_weights(arrays: ArrayRecord, number: int) -> Tensors:
    """Returns the weights that a server sends; none, with a warning, if they cannot be read."""
    try:
        return dict(arrays.to_torch_state_dict())
    except Exception as error:  # noqa: BLE001  the strategy must not notice
        log.warning("the weights of round %d cannot be captured: %s", number, one_line(error))
        return {}


def write_round(
    capture_writer: CaptureWriter,
    number: int,
    sent: Tensors,
    config: dict[str, Any],
    replies: Iterable[Message],
) -> None:
    """Writes one round, one reply after another; never raises."""
    try:
        writer = capture_writer.begin_round(number, sent, config=config)
        for message in replies:
            write_reply(writer, sent, message)
        writer.close()
    except Exception as error:  # noqa: BLE001  the strategy must not notice
        capture_writer.leave_out_round(number, one_line(error))


def write_reply(writer: RoundWriter, sent: Tensors, message: Message) -> None:
    """Writes what one client sent, or why it cannot be written."""
    node = str(message.metadata.src_node_id)
    if message.has_error():
        writer.add_failure(node, str(message.error.reason))
        return
    try:
        reply = read_reply(sent, message)
    except Exception as error:  # noqa: BLE001  whatever a client sends costs only that client
        writer.leave_out_client(node, one_line(error))
        return
    writer.add(reply)
