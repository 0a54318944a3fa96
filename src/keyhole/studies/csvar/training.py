"""Federated training for Table I: ten clients, one data set, one network, one defense."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from keyhole.defenses import Defense
from keyhole.federation import Federation, FedSgd, LocalTraining
from keyhole.federation.partition import PARTITIONS
from keyhole.seeds import generator
from keyhole.studies.csvar.networks import network
from keyhole.studies.held import accuracy, parts

CLIENTS = 10


@dataclass(frozen=True)
class Recipe:
    """FedSGD: every round each client sends the gradient of a batch, the server takes a step.

    By Adam, whose rate rises for a tenth of the rounds and falls by half a cosine after.
    """

    rounds: int
    batch_size: int
    lr: float
    augment: bool = False

    def rate(self, number: int) -> float:
        """The server's learning rate in round ``number``, from 1."""
        rising = max(1, self.rounds // 10)
        if number <= rising:
            return self.lr * number / rising
        share = (number - rising) / max(1, self.rounds - rising + 1)
        return self.lr * 0.5 * (1 + math.cos(math.pi * share))

    @property
    def server(self) -> LocalTraining:
        return LocalTraining(
            lr=self.lr,
            batch_size=self.batch_size,
            optimiser="adam",
            augment=self.augment,
            clip=5.0,
        )


RECIPES = {
    "mnist": Recipe(rounds=500, batch_size=32, lr=0.003),
    "cifar10": Recipe(rounds=3000, batch_size=32, lr=0.003, augment=True),
    "orl-faces": Recipe(rounds=500, batch_size=16, lr=0.003, augment=True),
}


def train(
    name: str,
    kind: str,
    defense: Defense,
    recipe: Recipe,
    *,
    seed: int,
    device: torch.device,
    data_dir: str | None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The global model after all rounds, and what became of it."""
    held = parts(name, data_dir, seed, device)
    data = held.data
    model = network(
        kind, classes=len(data.classes), channels=data.shape[0], size=data.size, seed=seed
    ).to(device)
    shares = PARTITIONS.parse("iid")(data, held.train, CLIENTS, generator(seed, "partition"))
    began = time.perf_counter()
    federation = Federation(
        model=model,
        data=data,
        shares=shares,
        test=(held.test, held.tested),
        training=recipe.server,
        defense=defense,
        seed=seed,
    )
    together = FedSgd(
        model,
        [federation.member(1, client) for client in range(CLIENTS)],
        recipe.server,
        defense=defense,
        rate=recipe.rate,
        seed=seed,
        half=device.type == "cuda",
    )
    for _ in together.rounds(recipe.rounds):
        pass
    seconds = time.perf_counter() - began
    tested = (held.test, held.tested)
    own = accuracy(model, tested, defense, seed) if defense.name != "none" else None
    facts = {
        "recipe": asdict(recipe),
        "clients": CLIENTS,
        "train_images": len(held.train),
        "test_images": len(held.tested),
        "seconds": round(seconds, 1),
        "accuracy": accuracy(model, tested, None, seed),
        "accuracy_on_defended": own,
        "train_accuracy": accuracy(model, (data, held.train[:10_000]), None, seed),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    return model, facts
