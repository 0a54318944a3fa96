"""Trains a plan's clients in Flower's simulation, which spreads them over the workers of Ray.

The server is Keyhole's own loop, with its run folder, its captures and its exact resume. Clients
get the weights, and send their updates rather than weights, so that the mean is the one that the
loop computes in process: the same weights to the bit on the same kind of CPU.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from keyhole.errors import DoesNotFit, KeyholeError
from keyhole.federation.client import train_client
from keyhole.federation.plan import TrainingPlan
from keyhole.federation.rounds import ClientUpdate, Federation
from keyhole.federation.run import TrainingResult, Watcher, build_federation, train
from keyhole.settings import make_settings
from keyhole.update import Update

CLIENTS_AT_ONCE = 64
"""Clients whose updates are on their way at the same time."""
RECORD = "keyhole"

app = ClientApp()


def train_in_simulation(
    plan: TrainingPlan,
    *,
    out: Path,
    data_dir: str | None = None,
    device: str = "cpu",
    capture: Path | None = None,
    limit_gb: float | None = None,
    fresh: bool = False,
    watchers: Sequence[Watcher] = (),
    cpus: int = 1,
    gpus: float = 0.0,
    options: dict[str, Any] | None = None,
) -> TrainingResult:
    """Trains as ``plan`` says, with its clients on Ray; the same call continues a training.

    Args:
        plan: What to train.
        out: The run folder; see :func:`keyhole.federation.train`.
        data_dir: The folder of data sets that are read from files, on all machines.
        device: Where clients train: ``cpu`` or ``cuda``.
        capture: The folder for what a curious server would write down; None means no capture.
        limit_gb: The disk space that a capture may use, in gigabytes.
        fresh: Whether to replace what an earlier run left in the folders.
        watchers: Called with every round when it ends.
        cpus: Threads of each client.
        gpus: GPUs of each client.
        options: What ``ray.init`` is given, such as ``num_cpus`` or ``address``.
    """
    if plan.together == "yes":
        raise DoesNotFit("Flower trains clients one by one: pass --together no")
    build_federation(plan, data_dir=data_dir)  # refuses here what clients would fail on
    ended: list[TrainingResult | BaseException] = []
    server = ServerApp()

    @server.main()  # type: ignore[untyped-decorator]
    def main(grid: Grid, context: Context) -> None:
        nodes = wait_for_nodes(grid, plan.clients)
        try:
            ended.append(
                train(
                    plan,
                    out=out,
                    data_dir=data_dir,
                    capture=capture,
                    limit_gb=limit_gb,
                    fresh=fresh,
                    watchers=watchers,
                    keep_updates=False,
                    elsewhere=GridRunner(grid, nodes, plan, data_dir, device, cpus),
                )
            )
        except BaseException as error:  # noqa: BLE001  raised again below, in the caller's thread
            ended.append(error)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server,
        app,
        num_supernodes=plan.clients,
        backend_config={
            "client_resources": {"num_cpus": cpus, "num_gpus": gpus},
            "init_args": {"log_to_driver": False, **(options or {})},
        },
    )
    if not ended:
        raise KeyholeError("Flower's simulation ended before the training: see its log")
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


def wait_for_nodes(grid: Grid, count: int) -> list[int]:
    """The nodes of a simulation, once they are all there."""
    while len(nodes := sorted(grid.get_node_ids())) < count:
        time.sleep(0.1)
    return nodes


class GridRunner:
    """Sends each client its part of a round, and receives the updates.

    Args:
        grid: The messages' way.
        nodes: One node for each client.
        plan: What is trained.
        data_dir: The folder of data sets that are read from files.
        device: Where clients train.
        cpus: Threads of each client.
    """

    def __init__(
        self,
        grid: Grid,
        nodes: Sequence[int],
        plan: TrainingPlan,
        data_dir: str | None,
        device: str,
        cpus: int,
    ) -> None:
        self.grid, self.nodes = grid, nodes
        self.about: dict[str, Any] = {
            "plan": json.dumps(plan.to_json()),
            "data-dir": data_dir or "",
            "device": device,
            "cpus": cpus,
        }

    def __call__(
        self, federation: Federation, number: int, clients: Sequence[int]
    ) -> Iterator[ClientUpdate]:
        weights = federation.model.state_dict()
        for start in range(0, len(clients), CLIENTS_AT_ONCE):
            chunk = clients[start : start + CLIENTS_AT_ONCE]
            asked = [self.ask(federation, weights, number, client) for client in chunk]
            answers = {}
            for reply in self.grid.send_and_receive(asked):
                if reply.has_error():
                    raise KeyholeError(f"a client failed in Flower: {reply.error.reason}")
                answers[int(reply.content[RECORD]["client"])] = reply
            for client in chunk:
                if client not in answers:
                    raise KeyholeError(f"client {client} sent nothing in round {number}")
                yield self.read(federation, client, answers.pop(client))

    def ask(
        self, federation: Federation, weights: dict[str, Any], number: int, client: int
    ) -> Message:
        """The message to a client: the weights, and what its defense remembers."""
        memory = json.dumps(federation.memory.get(client, {}))
        about = {**self.about, "round": number, "client": client, "memory": memory}
        content = RecordDict({"arrays": ArrayRecord(weights), RECORD: ConfigRecord(about)})
        return Message(content, self.nodes[client], MessageType.TRAIN)

    def read(self, federation: Federation, client: int, reply: Message) -> ClientUpdate:
        """A client's update; what its defense remembers is kept for the next round."""
        said = reply.content[RECORD]
        federation.memory[client] = json.loads(str(said["memory"]))
        facts = json.loads(str(said["facts"]))
        change = dict(reply.content["arrays"].to_torch_state_dict())
        like = next(federation.model.parameters())
        change = {name: tensor.to(like.device) for name, tensor in change.items()}
        return ClientUpdate(client, Update(change, **facts), json.loads(str(said["telemetry"])))


@app.train()  # type: ignore[untyped-decorator]
def train_one_client(message: Message, context: Context) -> Message:
    """One client's round, drawn as Keyhole's own loop draws it."""
    asked = message.content[RECORD]
    client, number = int(asked["client"]), int(asked["round"])
    torch.set_num_threads(int(asked["cpus"]))
    federation = load_federation(str(asked["plan"]), str(asked["data-dir"]), str(asked["device"]))
    federation.model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    federation.memory[client] = json.loads(str(asked["memory"]))
    member = federation.make_client(number, client)
    update, telemetry = train_client(
        federation.model,
        member.images,
        member.labels,
        data=member.data,
        defense=federation.defense,
        generator=member.generator,
        training=member.training,
        memory=member.memory,
        images_by_epoch=member.images_by_epoch,
    )
    facts = {name: value for name, value in vars(update).items() if name != "change"}
    said = {
        "client": client,
        "memory": json.dumps(member.memory),
        "telemetry": json.dumps(telemetry),
        "facts": json.dumps(facts),
    }
    change = {name: tensor.cpu() for name, tensor in update.change.items()}
    content = RecordDict({"arrays": ArrayRecord(change), RECORD: ConfigRecord(said)})
    return Message(content, reply_to=message)


@cache
def load_federation(plan: str, data_dir: str, device: str) -> Federation:
    """The federation of a plan, built once in each worker."""
    made = make_settings(TrainingPlan, json.loads(plan))
    return build_federation(made, data_dir=data_dir or None, device=torch.device(device))
