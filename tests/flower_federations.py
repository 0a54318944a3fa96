"""Federations whose clients train under Flower, for tests of mods and of curious strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from keyhole.data import ImageSet
from keyhole.defenses import (
    ClientSide,
    Defense,
)
from keyhole.federation import (
    Capture,
    Federation,
    TrainingPlan,
)
from keyhole.federation.flower import (
    train_locally,
)

CLIENTS = 3
Run = Callable[..., dict[str, Tensor]]


def plan_of(model: str = "mlp", **settings: Any) -> TrainingPlan:
    small = {"clients": CLIENTS, "images": 12, "batch_size": 5, "epochs": 2, "seed": 7}
    return TrainingPlan(model=model, **(small | {"together": "no"} | settings))


def answer(message: Message, weights: dict[str, Tensor], examples: int, client: int) -> Message:
    said = MetricRecord({"num-examples": examples, "partition-id": client})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": said}), reply_to=message)


def app_of(federation: Federation, *mods: Any) -> ClientApp:
    """Clients that hold the federation's shares and train by Keyhole's own loop."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Any) -> Message:
        client = context.node_config["partition-id"]
        number = message.content["config"]["server-round"]
        start = message.content["arrays"].to_torch_state_dict()
        federation.model.load_state_dict(start)
        member = federation.make_client(number, client)
        update = train_locally(
            federation.model,
            member.images,
            member.labels,
            data=federation.data,
            training=federation.training,
            generator=member.generator,
        )
        start = federation.model.state_dict()
        end = {name: tensor + update.change[name] for name, tensor in start.items()}
        return answer(message, end, update.examples, client)

    @app.evaluate()
    def evaluate(message: Message, context: Any) -> Message:
        arrays = message.content["arrays"].to_torch_state_dict()
        return answer(message, arrays, 1, context.node_config["partition-id"])

    return app


def recorded(folder: Path, number: int = 1, lost: int = 0) -> dict[int, dict[str, Tensor]]:
    """What each client changed in a round, as the server saw it, by partition."""
    seen = Capture.open(folder).rounds[number - 1]
    assert len(seen.clients) == CLIENTS - lost, seen.lost
    return {client["metrics"]["partition-id"]: seen.read_change(client) for client in seen.clients}


def as_it_travels(start: dict[str, Tensor], change: dict[str, Tensor]) -> dict[str, Tensor]:
    """A change after it was added to float32 weights, sent, and taken from them again."""
    return {name: (start[name] + change[name]) - start[name] for name in start}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[n], other[n]) for n in one)


def close(one: dict[str, Tensor], other: dict[str, Tensor], tolerance: float) -> bool:
    return one.keys() == other.keys() and all(
        float((one[n] - other[n]).abs().max()) <= tolerance for n in one
    )


@dataclass(frozen=True)
class Grain(Defense):
    """Adds noise to images, anew whenever they are shown."""

    name: ClassVar[str] = "grain"

    def on_images(self, images: Tensor, side: ClientSide | None = None) -> Tensor:
        assert side is not None
        assert side.labels is not None
        return images + 0.3 * torch.randn(images.shape, generator=side.generator)


@dataclass(frozen=True)
class Signs(Defense):
    """Every local step goes by the signs of a loss of its own."""

    name: ClassVar[str] = "signs"

    def on_step(
        self, model: nn.Module, inputs: Tensor, labels: Tensor, side: ClientSide | None = None
    ) -> list[Tensor]:
        loss = model(inputs)[torch.arange(len(labels)), labels].sum()
        return [g.sign() for g in torch.autograd.grad(loss, list(model.parameters()))]


def alone(
    federation: Federation,
) -> Callable[[Context], tuple[nn.Module, ImageSet, Tensor, Tensor]]:
    """What each node knows of itself."""

    def own(context: Context) -> tuple[nn.Module, ImageSet, Tensor, Tensor]:
        share = list(federation.shares[int(context.node_config["partition-id"])])
        data = federation.data
        return copy.deepcopy(federation.model), data, data.images(share), data.labels[share]

    return own
