"""Federated averaging for the paper's Figure 3: accuracy round by round, under a defense."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses import DEFENSES, CalibratedNoise, Defense, keep_parameters
from keyhole.errors import BadUpdate
from keyhole.federation import (
    PARTITIONS,
    ClientUpdate,
    Federation,
    LocalTraining,
    average_updates,
)
from keyhole.federation.backends import CudaGraphTrainer, LoopTrainer
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update
from keyhole_studies.resident_data import load_resident_data

TELEMETRY = ("beta", "sigma", "update_norm", "noise_norm", "clip_scale")
"""What defenses report of themselves."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FedAvgSettings:
    """How clients train and how their updates are averaged.

    Args:
        name: What results and figures call these settings.
        rounds: How often updates are averaged.
        lr: The clients' learning rate.
        momentum: Of the clients' SGD.
        clients: All clients.
        sampled: Clients that train in a round.
        epochs: Of a client in a round.
        batch_size: Of a client.
        clip: The largest norm of a step's gradient; None: any.
        model: The network.
        every: Accuracy is taken after so many rounds, and after the last.
        tested: It is taken on the first so many test images.
        optimiser: The clients'.
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
    optimiser: Literal["sgd", "adam"] = "sgd"

    def make_training(self) -> LocalTraining:
        """What a client does in a round."""
        return LocalTraining(
            lr=self.lr,
            epochs=self.epochs,
            batch_size=self.batch_size,
            momentum=self.momentum,
            clip=self.clip,
            optimiser=self.optimiser,
        )

    def describe_update(self, images: int) -> Update:
        """An update of a client with so many images, without its tensors."""
        training = self.make_training()
        steps, size = training.count_steps(images), training.batch_size_for(images)
        return Update({}, steps=steps, lr=self.lr, batch_size=size, examples=images)


PAPER = FedAvgSettings(name="paper", rounds=1000, lr=0.001)
"""As the paper trains."""

Calibration = Literal["own", "paper"]
"""Whether noise is calibrated to the clients' own rate, or fixed at what the paper's asks for."""


def run_rounds(
    defense: str,
    settings: FedAvgSettings,
    *,
    data: str = "cifar10",
    partition: str = "iid",
    calibration: Calibration = "own",
    seed: int = 0,
    device: torch.device | None = None,
    data_dir: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Trains, and yields every few rounds how good the model is and how strong the noise was.

    ``strength`` is beta or sigma; ``update_norm`` and ``noise_norm`` are means over the round's
    clients, before the noise and of it. Where a client's training ends in NaN, the last point is of
    the model that it began with, and says ``diverged``.

    Args:
        defense: The clients' defense.
        settings: How they train.
        data: The data set.
        partition: How its images are shared out among clients.
        calibration: What the noise is calibrated to.
        seed: Of weights, shares, batches and noise.
        device: Where all of it runs; None: on the CPU.
        data_dir: Folder of data sets.
    """
    place = device or torch.device("cpu")
    parsed = DEFENSES.parse(defense)
    federation = build_federation(parsed, settings, data, partition, seed, place, data_dir)
    if calibration == "paper":
        usual = sum(len(share) for share in federation.shares) // settings.clients
        federation.defense = calibrate_as_paper(parsed, federation.model, usual)
    began = time.perf_counter()
    for number in range(1, settings.rounds + 1):
        sent = {name: tensor.clone() for name, tensor in federation.model.state_dict().items()}
        try:
            shares = federation.collect_updates(number, federation.sample_clients(number))
        except BadUpdate:
            yield {**evaluate_round(federation, number, began), "diverged": True}
            return
        federation.model.load_state_dict(average_updates(sent, [share.update for share in shares]))
        if number % settings.every == 0 or number == settings.rounds:
            point = evaluate_round(federation, number, began)
            yield point | measure_noise(shares, federation.model)


def evaluate_round(federation: Federation, number: int, began: float) -> dict[str, Any]:
    """How good the model is after (or in) a round."""
    accuracy, loss = federation.evaluate()
    seconds = round(time.perf_counter() - began, 2)
    known = loss if math.isfinite(loss) else None
    return {"round": number, "accuracy": accuracy, "loss": known, "seconds": seconds}


def build_federation(
    defense: Defense,
    settings: FedAvgSettings,
    name: str,
    partition: str,
    seed: int,
    device: torch.device,
    data_dir: str | None,
) -> Federation:
    """The clients with their images, and the network."""
    resident = load_resident_data(name, data_dir, seed, device)
    data, on_gpu = resident.data, device.type == "cuda"
    model = build(
        settings.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=seed,
    )
    defense.validate(model)
    draw = generator(seed, "partition")
    shares = PARTITIONS.parse(partition)(data, resident.train_indices, settings.clients, draw)
    return Federation(
        model=defense.prepare_model(model).to(device),
        data=data,
        shares=cut_to_batches(shares, settings.batch_size),
        test=(resident.test, resident.test_indices[: settings.tested]),
        training=replace(settings.make_training(), precision="bf16" if on_gpu else None),
        defense=defense,
        fraction=settings.sampled / settings.clients,
        seed=seed,
        backend=CudaGraphTrainer(slots=settings.sampled) if on_gpu else LoopTrainer(),
    )


def cut_to_batches(shares: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Shares cut to whole batches where they differ in size; those below a batch stay.

    Steps are recorded by their batch's shape: a last batch of every size would be a recording each.

    >>> cut_to_batches([[1, 2, 3], [4, 5, 6, 7, 8], [9]], 2)
    [[1, 2], [4, 5, 6, 7], [9]]
    """
    if max(map(len, shares)) - min(map(len, shares)) <= 1:
        return [list(share) for share in shares]
    return [list(share[: len(share) // size * size or len(share)]) for share in shares]


def calibrate_as_paper(defense: Defense, model: nn.Module, images: int) -> Defense:
    """The defense at the beta or sigma that it gives itself where clients train as in the paper."""
    if not isinstance(defense, CalibratedNoise):
        return defense
    return defense.with_strength(defense.strength(PAPER.describe_update(images), model))


def measure_noise(shares: Sequence[ClientUpdate], model: nn.Module) -> dict[str, float]:
    """Means over a round's clients of what their defense reports; without one, of their norms."""
    reports = [share.telemetry for share in shares]
    found: dict[str, float] = {
        name: sum(float(report[name]) for report in reports) / len(reports)
        for name in TELEMETRY
        if name in reports[0]
    }
    strength = found.pop("beta", found.pop("sigma", 0.0))
    if "update_norm" not in found:
        norms = [keep_parameters(share.update, model).norm() for share in shares]
        found["update_norm"] = sum(norms) / len(norms)
    return {"strength": strength, "noise_norm": 0.0, **found}
