"""Federated averaging for the paper's Figure 3: accuracy round by round, under a defense."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import torch
from torch import nn

from keyhole.data import ImageSet
from keyhole.defenses import DEFENSES, Defense
from keyhole.defenses.calibrated import CalibratedNoise, of_parameters
from keyhole.errors import BadUpdate
from keyhole.federation import Federation, LocalTraining, Share, TrainingPlan, averaged
from keyhole.federation.graphed import Graphed
from keyhole.federation.partition import PARTITIONS, Shares
from keyhole.federation.run import parts
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.studies.held import resident
from keyhole.studies.tip.inversion import SMALL
from keyhole.update import Update


@dataclass(frozen=True)
class Recipe:
    """FedAvg: ``sampled`` of ``clients`` train a round; accuracy is taken ``every`` few rounds.

    It is taken on the first ``tested`` test images.
    """

    name: str
    rounds: int
    lr: float
    momentum: float = 0.0
    clients: int = 100
    sampled: int = 10
    epochs: int = 2
    batch_size: int = 32
    clip: float | None = None
    model: str = "resnet18"
    every: int = 5
    tested: int = 10_000

    @property
    def training(self) -> LocalTraining:
        return LocalTraining(
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            clip=self.clip,
        )

    def update_of(self, images: int) -> Update:
        """An update of a client with so many images, without its tensors."""
        steps, size = self.training.steps_of(images), self.training.local_batch(images)
        return Update({}, steps=steps, lr=self.lr, batch_size=size, examples=images)


PAPER = Recipe("paper", rounds=200, lr=0.001)
"""As the paper trains, for a fifth of its rounds."""
PRACTICAL = Recipe("practical", rounds=10, lr=0.05, momentum=0.9, clip=5.0)
"""A rate with which few rounds teach something."""
SMALLER = replace(PRACTICAL, name="small", rounds=30, model=SMALL, tested=2000)
"""The same of two convolutions, a minute or two of a CPU."""
RECIPES = {recipe.name: recipe for recipe in (PAPER, PRACTICAL, SMALLER)}

Calibration = Literal["own", "paper"]
"""Whether noise is calibrated to the recipe's own rate, or fixed at what the paper's asks for."""


def points(
    defense: str,
    recipe: Recipe,
    *,
    data: str = "cifar10",
    partition: str = "iid",
    calibration: Calibration = "own",
    seed: int = 0,
    device: torch.device | None = None,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Trains, and yields every few rounds how good the model is and how loud the defense was.

    ``strength`` is beta or sigma; ``update_norm`` and ``noise_norm`` are means over the round's
    clients, before and of the noise. Where a client's training ends in NaN, the last point is of
    the model that it began with, and says ``diverged``.
    """
    place = device or torch.device("cpu")
    made = DEFENSES.parse(defense)
    federation = assembled(made, recipe, data, partition, seed, place, data_dir)
    if calibration == "paper":
        usual = sum(len(s) for s in federation.shares) // recipe.clients
        federation.defense = at_paper_strength(made, federation.model, usual)
    began = time.perf_counter()
    for number in range(1, recipe.rounds + 1):
        sent = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
        try:
            shares = federation.updates(number, federation.sampled(number))
        except BadUpdate:
            yield {**judged(federation, number, began), "diverged": True}
            return
        federation.model.load_state_dict(averaged(sent, [share.update for share in shares]))
        if number % recipe.every == 0 or number == recipe.rounds:
            yield judged(federation, number, began) | loudness(shares, federation.model)


def judged(federation: Federation, number: int, began: float) -> dict[str, Any]:
    """How good the model is after (or in) a round."""
    accuracy, loss = federation.evaluate()
    seconds = round(time.perf_counter() - began, 2)
    known = loss if math.isfinite(loss) else None
    return {"round": number, "accuracy": accuracy, "loss": known, "seconds": seconds}


Held = tuple[ImageSet, list[int]]


@lru_cache(maxsize=1)
def held(name: str, data_dir: str | None, seed: int, device: torch.device) -> tuple[Held, Held]:
    """The images to train on and those to test on, decoded once and kept on the device."""
    data, images, (test, tested) = parts(TrainingPlan(data=name, seed=seed), data_dir)
    kept = resident(data, device)
    return (kept, images), (kept if test is data else resident(test, device), tested)


def assembled(
    defense: Defense,
    recipe: Recipe,
    name: str,
    partition: str,
    seed: int,
    device: torch.device,
    data_dir: str | None,
) -> Federation:
    """The clients with their images, and the network."""
    (data, images), (test, tested) = held(name, data_dir, seed, device)
    model = build(
        recipe.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
    )
    defense.validate(model)
    draw = generator(seed, "partition")
    shares = PARTITIONS.parse(partition)(data, images, recipe.clients, draw)
    return Federation(
        model=model.to(device),
        data=data,
        shares=whole_batches(shares, recipe.batch_size),
        test=(test, tested[: recipe.tested]),
        training=recipe.training,
        defense=defense,
        fraction=recipe.sampled / recipe.clients,
        seed=seed,
        together=Graphed(half=True, lanes=recipe.sampled) if device.type == "cuda" else None,
    )


def whole_batches(shares: Shares, size: int) -> Shares:
    """Shares cut to whole batches where they differ in size; those below a batch stay.

    Steps are recorded by their batch's shape: a last batch of every size would be a recording each.

    >>> whole_batches([[1, 2, 3], [4, 5, 6, 7, 8], [9]], 2)
    [[1, 2], [4, 5, 6, 7], [9]]
    """
    if max(map(len, shares)) - min(map(len, shares)) <= 1:
        return shares
    return [share[: len(share) // size * size or len(share)] for share in shares]


def at_paper_strength(defense: Defense, model: nn.Module, images: int) -> Defense:
    """The defense at the beta or sigma that it gives itself where clients train as in the paper."""
    if not isinstance(defense, CalibratedNoise):
        return defense
    return defense.at(defense.strength(PAPER.update_of(images), model))


def loudness(shares: Sequence[Share], model: nn.Module) -> dict[str, float]:
    """Means over a round's clients of what their defense reports; without one, of their norms."""
    said = [share.telemetry for share in shares]
    found: dict[str, float] = {
        name: sum(float(one[name]) for one in said) / len(said)
        for name in ("beta", "sigma", "update_norm", "noise_norm", "clip_scale")
        if name in said[0]
    }
    strength = found.pop("beta", found.pop("sigma", 0.0))
    if "update_norm" not in found:
        norms = [of_parameters(share.update, model).norm() for share in shares]
        found["update_norm"] = sum(norms) / len(norms)
    return {"strength": strength, "noise_norm": 0.0, **found}
