"""A malicious server under secure aggregation, which Flower has in its older API alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.attacks import Attack
from keyhole.auditing.lying_server import (
    LyingServer,
    Tensors,
    average_tensors,
    check_ownership,
    name_member,
    sort_nodes,
)
from keyhole.errors import DoesNotFit, one_line
from keyhole.federation import CaptureWriter, Reply
from keyhole.federation.capture import LIMIT_GB
from keyhole.mean_and_std import normalisation_entries
from keyhole.threat import PublicKnowledge
from keyhole.update import convert_type

CLIPPING_RANGE = 8.0
"""The largest weight that Flower's ``SecAggPlusWorkflow`` carries by default."""


def alter_secure_sums(strategy: type[Any]) -> type[Any]:
    """Returns the malicious form of a strategy of Flower's older API (see ``malicious``)."""
    from flwr.common import FitIns, ndarrays_to_parameters, parameters_to_ndarrays

    def to_parameters(tensors: Mapping[str, Tensor]) -> Any:
        return ndarrays_to_parameters([tensor.cpu().numpy() for tensor in tensors.values()])

    class Malicious(strategy):  # type: ignore[misc]
        def __init__(
            self,
            *args: Any,
            attack: Attack,
            model: nn.Module,
            public: PublicKnowledge,
            capture: str | Path,
            i_own_these_clients: bool = False,
            clipping_range: float = CLIPPING_RANGE,
            limit_gb: float = LIMIT_GB,
            mean: float | Sequence[float] | None = None,
            std: float | Sequence[float] | None = None,
            about: dict[str, Any] | None = None,
            fresh: bool = False,
            **keywords: Any,
        ) -> None:
            check_ownership(i_own_these_clients)
            if public.clients < 2:
                raise DoesNotFit("a secure sum has several clients: PublicKnowledge(clients=...)")
            self.lying_server = LyingServer(attack, model, public, clipping_range=clipping_range)
            super().__init__(*args, **keywords)
            self.capture_writer = CaptureWriter(
                Path(capture),
                limit_gb=limit_gb,
                about={
                    **(about or {}),
                    **normalisation_entries(mean, std),
                    **self.lying_server.describe(),
                },
                fresh=fresh,
                resume=False,
            )
            self.sent_config: dict[str, Any] = {}

        def configure_fit(
            self, server_round: int, parameters: Any, client_manager: Any
        ) -> list[tuple[Any, Any]]:
            chosen = super().configure_fit(server_round, parameters, client_manager)
            server = self.lying_server
            honest = name_arrays(server.model.state_dict(), parameters_to_ndarrays(parameters))
            server.begin_round(honest, sort_nodes([str(client.cid) for client, _ in chosen]))
            self.sent_config = dict(chosen[0][1].config)
            return [
                (client, FitIns(to_parameters(server.sent[str(client.cid)]), given.config))
                for client, given in chosen
            ]

        def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
            if results:
                arrays = {
                    str(client.cid): parameters_to_ndarrays(reply.parameters)
                    for client, reply in results
                }
                replies = {str(client.cid): reply for client, reply in results}
                found = average_results(self.lying_server, arrays, replies)
                self.capture(server_round, found)
                parameters = to_parameters(self.lying_server.apply_to_honest(found.change))
                for _, reply in results:
                    reply.parameters = parameters
            return super().aggregate_fit(server_round, results, failures)

        def capture(self, server_round: int, found: Reply) -> None:
            server, writer = self.lying_server, self.capture_writer
            if found.clients < server.public.clients:
                lost = server.public.clients - found.clients
                writer.leave_out_round(server_round, f"{lost} clients of the sum sent nothing")
                return
            try:
                writer.write_round(server_round, server.altered, [found], config=self.sent_config)
            except Exception as error:  # noqa: BLE001  the strategy must not notice
                writer.leave_out_round(server_round, one_line(error))

    Malicious.__name__ = Malicious.__qualname__ = f"Malicious{strategy.__name__}"
    return Malicious


def average_results(
    server: LyingServer, arrays: Mapping[str, Sequence[Any]], replies: Mapping[str, Any]
) -> Reply:
    """Returns what all clients changed together.

    Under secure aggregation ``arrays`` are the same for all: their mean.
    """
    nodes = [node for node in server.sent if node in replies]
    examples = [int(replies[node].num_examples) for node in nodes]
    sent = average_tensors([server.sent[node] for node in nodes], examples)
    end = average_tensors([name_arrays(sent, arrays[node]) for node in nodes], examples)
    members = [name_member(node, replies[node].metrics) for node in nodes]
    change = {name: end[name] - start for name, start in sent.items()}
    return server.build_sum(change, examples, members)


def name_arrays(names: Mapping[str, Tensor], arrays: Sequence[Any]) -> Tensors:
    """Returns a list of arrays as tensors of a model, in the model's types."""
    if len(arrays) != len(names):
        raise DoesNotFit(f"a client sent {len(arrays)} arrays for a model of {len(names)}")
    named = dict(zip(names, map(torch.tensor, arrays), strict=True))
    odd = next((name for name, like in names.items() if named[name].shape != like.shape), None)
    if odd is not None:
        raise DoesNotFit(f"a client sent {odd!r} in another shape than the model's")
    return {name: convert_type(named[name], like) for name, like in names.items()}
