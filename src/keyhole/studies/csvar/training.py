"""Federated training for Table I: ten clients, one data set, one network, one defense."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from keyhole.data import ImageSet, load
from keyhole.defenses import ClientSide, Defense
from keyhole.federation import Federation, LocalTraining
from keyhole.federation.fedavg import averaged
from keyhole.federation.graphed import Graphed
from keyhole.federation.partition import PARTITIONS, shuffled
from keyhole.seeds import generator
from keyhole.studies.csvar.networks import network

CLIENTS = 10
HELD_OUT = 0.2
EVALUATED = 1000


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


@dataclass(frozen=True)
class Split:
    """A data set in memory, and which of its images train and which test."""

    data: ImageSet
    train: list[int]
    test: ImageSet
    tested: list[int]


@lru_cache(maxsize=1)
def split(name: str, data_dir: str | None, seed: int, device: torch.device) -> Split:
    """The data set's own test part where it has one; else a fifth, held out by seed."""
    data = resident(load(name, data_dir=data_dir), device)
    every = list(range(len(data)))
    if name == "orl-faces":
        order = shuffled(every, generator(seed, "held out"))
        kept = round(HELD_OUT * len(order))
        return Split(data, sorted(order[kept:]), data, sorted(order[:kept]))
    test = resident(load(name, data_dir=data_dir, split="test"), device)
    return Split(data, every, test, list(range(len(test))))


def resident(data: ImageSet, device: torch.device) -> ImageSet:
    """The set with all its images decoded once and held on the device."""
    held = torch.cat(
        [data.pixels(range(i, min(i + 5000, len(data)))) for i in range(0, len(data), 5000)]
    ).to(device)
    return replace(data, pixels=lambda indices: held[torch.as_tensor(indices).to(device)])


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
    parts = split(name, data_dir, seed, device)
    data = parts.data
    model = network(
        kind, classes=len(data.classes), channels=data.shape[0], size=data.size, seed=seed
    ).to(device)
    shares = PARTITIONS.parse("iid")(data, parts.train, CLIENTS, generator(seed, "partition"))
    began = time.perf_counter()
    federation = Federation(
        model=model,
        data=data,
        shares=shares,
        test=(parts.test, parts.tested),
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
    held = (parts.test, parts.tested)
    own = accuracy(model, held, defense, seed) if defense.name != "none" else None
    facts = {
        "recipe": asdict(recipe),
        "clients": CLIENTS,
        "train_images": len(parts.train),
        "test_images": len(parts.tested),
        "seconds": round(seconds, 1),
        "accuracy": accuracy(model, held, None, seed),
        "accuracy_on_defended": own,
        "train_accuracy": accuracy(model, (data, parts.train[:10_000]), None, seed),
        "parameters": sum(p.numel() for p in model.parameters()),
    }
    return model, facts


@torch.no_grad()
def accuracy(
    model: nn.Module, held: tuple[ImageSet, list[int]], defense: Defense | None, seed: int
) -> float:
    """The share of images classified right, as they are or as the defense shows them."""
    data, _ = held
    model.eval()
    side = ClientSide(generator(seed, "evaluation"))
    right = total = 0
    for images, labels in batches(held, next(model.parameters())):
        shown = images if defense is None else defense.on_images(images, side)
        right += int((model(data.normalise(shown)).argmax(1) == labels).sum())
        total += len(labels)
    return right / total


def batches(held: tuple[ImageSet, list[int]], like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    data, indices = held
    for start in range(0, len(indices), EVALUATED):
        some = indices[start : start + EVALUATED]
        yield data.images(some).to(like), data.labels[some].to(like.device)
