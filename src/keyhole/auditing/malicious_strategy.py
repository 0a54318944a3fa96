"""Flower strategies of a server that lies about the model, to audit one's own deployment."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from keyhole.attacks import Attack
from keyhole.auditing.lying_server import (
    LyingServer,
    average_tensors,
    check_ownership,
    name_member,
    sort_nodes,
)
from keyhole.errors import DoesNotFit, one_line
from keyhole.threat import PublicKnowledge

log = logging.getLogger("keyhole")


def malicious(strategy: type[Any]) -> type[Any]:
    """Returns a strategy class that sends altered models out, and captures what comes back.

    It is for an audit of your own deployment: it shows what clients would give away to a server
    that lies about the model. All else goes on as before: what clients learn is applied to the
    honest model. The class takes these keywords besides its own and those of ``curious``:

    * ``attack``: the attack that alters the model, such as ``TrapWeights()``;
    * ``model``: the clients' model;
    * ``public``: a :class:`~keyhole.threat.PublicKnowledge`. If its ``clients`` is above 1, the
      server gets the clients' updates as one sum, and the mean is captured;
    * ``i_own_these_clients=True``: without it nothing starts.

    A strategy of Flower's older API, ``flwr.server.strategy``, is for secure aggregation
    (``SecAggPlusWorkflow``); its class takes ``clipping_range`` as well, the workflow's own, which
    no weight that is sent exceeds.

    ``audit --captured`` reads the folder. Clients that load weights into a model of their own can
    be attacked only by attacks that add no layer.

    Args:
        strategy: A class of ``flwr.serverapp.strategy`` or ``flwr.server.strategy``: ``FedAvg``.
    """
    from flwr.server.strategy import Strategy as OlderStrategy
    from flwr.serverapp.strategy import Strategy

    if isinstance(strategy, type) and issubclass(strategy, OlderStrategy):
        from keyhole.auditing.malicious_sum import alter_secure_sums

        return alter_secure_sums(strategy)
    if not (isinstance(strategy, type) and issubclass(strategy, Strategy)):
        raise DoesNotFit("malicious() takes a class of flwr.serverapp.strategy, such as FedAvg")
    return _alter_messages(strategy)


def _alter_messages(strategy: type[Any]) -> type[Any]:
    """Returns the malicious form of a strategy of Flower's message API."""
    from flwr.app import ArrayRecord, ConfigRecord, Message

    from keyhole.federation.flower import curious
    from keyhole.federation.flower.messages import compute_change, read_weights, replace_weights
    from keyhole.federation.flower.server import write_round

    class Lying(strategy):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            lying_server: LyingServer,
            **keywords: Any,
        ) -> None:
            super().__init__(*args, **keywords)
            self.lying_server = lying_server

        def configure_train(
            self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
        ) -> Iterable[Message]:
            messages = list(super().configure_train(server_round, arrays, config, grid))
            if messages:
                nodes = sort_nodes([str(each.metadata.dst_node_id) for each in messages])
                self.lying_server.begin_round(dict(arrays.to_torch_state_dict()), nodes)
            sent = self.lying_server.sent
            records = {id(weights): ArrayRecord(weights) for weights in sent.values()}
            for message in messages:
                record = records[id(sent[str(message.metadata.dst_node_id)])]
                (key,) = message.content.array_records
                message.content = type(message.content)({**message.content, key: record})
            return messages

        def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
            return super().aggregate_train(server_round, self.correct_replies(replies))

        def correct_replies(self, replies: Iterable[Message]) -> list[Message]:
            """Returns the replies as if clients had trained the honest model."""
            correct = []
            for reply in replies:
                if not reply.has_error():
                    node = str(reply.metadata.src_node_id)
                    try:
                        change = compute_change(self.lying_server.sent[node], read_weights(reply))
                        replace_weights(reply, self.lying_server.apply_to_honest(change))
                    except Exception as error:  # noqa: BLE001  a client may send anything
                        log.warning("the reply of client %s is left out: %s", node, one_line(error))
                        continue
                correct.append(reply)
            return correct

    class Malicious(curious(Lying)):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            attack: Attack,
            model: nn.Module,
            public: PublicKnowledge,
            i_own_these_clients: bool = False,
            about: dict[str, Any] | None = None,
            **keywords: Any,
        ) -> None:
            check_ownership(i_own_these_clients)
            lying_server = LyingServer(attack, model, public)
            about = {**(about or {}), **lying_server.describe()}
            super().__init__(*args, lying_server=lying_server, about=about, **keywords)

        def capture_round(self, server_round: int, replies: Sequence[Message]) -> None:
            server, config = self.lying_server, self.sent_config
            if server.public.clients == 1:
                write_round(self.capture_writer, server_round, server.altered, config, replies)
                return
            try:
                reply = average_replies(server, replies)
                self.capture_writer.write_round(
                    server_round, server.altered, [reply], config=config
                )
            except Exception as error:  # noqa: BLE001  the strategy must not notice
                self.capture_writer.leave_out_round(server_round, one_line(error))

    Malicious.__name__ = Malicious.__qualname__ = f"Malicious{strategy.__name__}"
    return Malicious


def average_replies(server: LyingServer, replies: Iterable[Any]) -> Any:
    """Returns the mean of all replies of a round, as secure aggregation would give it."""
    from keyhole.federation.flower.messages import read_reply

    by_node = {str(each.metadata.src_node_id): each for each in replies if not each.has_error()}
    lost = [node for node in server.sent if node not in by_node]
    if lost:
        raise DoesNotFit(f"client {lost[0]} of the sum sent nothing")
    found = [read_reply(weights, by_node[node]) for node, weights in server.sent.items()]
    examples = [reply.examples or 0 for reply in found]
    change = average_tensors([reply.change for reply in found], examples)
    members = [name_member(reply.node, reply.metrics) for reply in found]
    return server.build_sum(change, examples, members)
