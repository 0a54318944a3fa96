"""Federated training for Table I: ten clients, one data set, one network, one defense."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from keyhole.defenses import Defense
from keyhole.federation import Federation, LocalTraining
from keyhole.federation.fedavg import averaged
from keyhole.federation.graphed import Graphed
from keyhole.federation.partition import PARTITIONS
from keyhole.seeds import generator
from keyhole.studies.csvar.networks import network
from keyhole.studies.held import accuracy, parts

CLIENTS = 10


@dataclass(frozen=True)
class Recipe:
    """Adam, whose rate falls by half a cosine over the rounds.

    These networks learn faster by it from fresh weights than by SGD, MobileNet above all.

    A client takes ``steps`` a round, in batches of ``batch_size`` of its images in random order.
    """

    rounds: int
    steps: int
    batch_size: int
    lr: float
    augment: bool = False

    def training(self, number: int) -> LocalTraining:
        """What a client does in round ``number``, from 1."""
        share = 0.5 * (1 + math.cos(math.pi * (number - 1) / self.rounds))
        return LocalTraining(
            lr=self.lr * share,
            steps=self.steps,
            batch_size=self.batch_size,
            optimiser="adam",
            augment=self.augment,
            clip=5.0,
        )


RECIPES = {
    "mnist": Recipe(rounds=15, steps=20, batch_size=32, lr=0.001),
    "cifar10": Recipe(rounds=50, steps=24, batch_size=32, lr=0.001, augment=True),
    "orl-faces": Recipe(rounds=60, steps=8, batch_size=16, lr=0.001, augment=True),
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
        training=recipe.training(1),
        defense=defense,
        seed=seed,
        together=Graphed(half=True, lanes=CLIENTS) if device.type == "cuda" else None,
    )
    for number in range(1, recipe.rounds + 1):
        federation.training = recipe.training(number)
        sent = {key: tensor.clone() for key, tensor in model.state_dict().items()}
        found = federation.updates(number, federation.sampled(number))
        model.load_state_dict(averaged(sent, [share.update for share in found]))
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
