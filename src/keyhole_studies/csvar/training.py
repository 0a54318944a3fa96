"""Federated training for Table I: ten clients, one data set, one network, one defense."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch
from pydantic import ConfigDict
from pydantic.dataclasses import dataclass
from torch import nn

from keyhole.defenses import Defense
from keyhole.federation import PARTITIONS, Federation, LocalTraining
from keyhole.seeds import generator
from keyhole_studies.csvar.networks import build_network
from keyhole_studies.csvar.overfitting import measure_overfitting
from keyhole_studies.fedsgd import FedSgd
from keyhole_studies.resident_data import load_resident_data, measure_accuracy
from keyhole_studies.training import compute_rate

CLIENTS = 10
MOST_TRAINED = 10_000
"""Training images on which accuracy is measured, at most."""


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class FedSgdSettings:
    """FedSGD: every round each client sends the gradient of a batch, the server takes a step.

    The server's optimiser is Adam. Its rate rises for a tenth of the rounds, then falls by half a
    cosine.

    Args:
        rounds: Steps of the server.
        batch_size: Images in a client's batch.
        lr: The highest learning rate.
        augment: Clients flip and shift their images.
        at: Rounds after which it is measured how far the network overfits, beside the last.
    """

    rounds: int
    batch_size: int
    lr: float
    augment: bool = False
    at: tuple[int, ...] = ()

    def rate(self, number: int) -> float:
        """The server's learning rate in round ``number``, from 1."""
        return compute_rate(self.lr, number, max(1, self.rounds // 10), self.rounds + 1)

    def make_training(self) -> LocalTraining:
        """The server's optimiser and the clients' batches."""
        return LocalTraining(
            lr=self.lr,
            batch_size=self.batch_size,
            optimiser="adam",
            augment=self.augment,
            clip=5.0,
        )


def train_clients(
    name: str,
    network: str,
    defense: Defense,
    settings: FedSgdSettings,
    *,
    seed: int,
    device: torch.device,
    data_dir: str | None,
    image_size: int | None = None,
) -> tuple[nn.Module, dict[str, Any]]:
    """The global model after all rounds, and what is measured of it.

    Args:
        name: The data set.
        network: A name of :data:`~keyhole_studies.csvar.networks.NETWORKS`.
        defense: What clients do to their images.
        settings: How clients and server train.
        seed: Of weights, shares and batches.
        device: Where all of it runs.
        data_dir: Folder of data sets.
        image_size: Images are scaled to it before clients defend them; None: they keep their size.
    """
    resident = load_resident_data(name, data_dir, seed, device, image_size)
    data = resident.data
    model = build_network(
        network, classes=len(data.classes), channels=data.shape[0], size=data.size, seed=seed
    ).to(device)
    draw = generator(seed, "partition")
    federation = Federation(
        model=model,
        data=data,
        shares=PARTITIONS.parse("iid")(data, resident.train_indices, CLIENTS, draw),
        test=(resident.test, resident.test_indices),
        training=settings.make_training(),
        defense=defense,
        seed=seed,
    )
    server = FedSgd(
        model,
        [federation.make_client(1, client) for client in range(CLIENTS)],
        settings.make_training(),
        defense=defense,
        rate=settings.rate,
        seed=seed,
        half=device.type == "cuda",
    )
    seconds, overfitting = 0.0, []
    for last in sorted({*settings.at, settings.rounds}):
        began = time.perf_counter()
        for _ in server.run_rounds(last):
            pass
        seconds += time.perf_counter() - began
        overfitting.append({"round": last, **measure_overfitting(model, resident)})
    tested = (resident.test, resident.test_indices)
    defended = None
    if defense.name != "none":
        defended = measure_accuracy(model, *tested, defense=defense, seed=seed)
    return model, {
        "recipe": asdict(settings),
        "clients": CLIENTS,
        "image_size": list(data.size),
        "train_images": len(resident.train_indices),
        "test_images": len(resident.test_indices),
        "seconds": round(seconds, 1),
        "accuracy": measure_accuracy(model, *tested),
        "accuracy_on_defended": defended,
        "train_accuracy": measure_accuracy(model, data, resident.train_indices[:MOST_TRAINED]),
        "overfitting": overfitting,
        "parameters": sum(p.numel() for p in model.parameters()),
    }
