"""Clients of 8 images and 4 local steps of 2 with momentum: attacks beside one large step.

    python tools/measure_local_steps.py --data-dir DATA --iterations 2000 --victims 4 --device cuda

Prints one JSON object a line: model, attack, learning rate, mean and single PSNR.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import nn

from keyhole.attacks import EpochMatching, InvertingGradients, Matching, SurrogateInversion
from keyhole.auditing import count_orders
from keyhole.data import denormalise, load
from keyhole.defenses import NoDefense
from keyhole.federation import LocalTraining, train_client
from keyhole.metrics import assign_reconstructions, psnr
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server


def quickstart(classes: int) -> nn.Module:
    """The convolutional network of Flower's PyTorch quickstart, for images of 32 x 32 pixels."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()),
        nn.Linear(84, classes),
    )


def main() -> None:
    """Lets clients train and attacks them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--data", default="dia-cifar10")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--victims", type=int, default=4)
    parser.add_argument("--lr", type=float, nargs="+", default=[0.01, 0.05])
    parser.add_argument("--models", nargs="+", default=["vit-small", "quickstart"])
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = load(options.data, data_dir=options.data_dir)
    for name in options.models:
        model = (
            quickstart(10)
            if name == "quickstart"
            else build(name, classes=10, channels=data.shape[0], image_size=data.size, seed=0)
        ).to(options.device)
        for lr in options.lr:
            seen, truths = observe(model, data, lr, options)
            attacks: list[tuple[str, Matching]] = [
                ("one large step (ig)", InvertingGradients(iterations=options.iterations)),
                (
                    "sme, images alike",
                    SurrogateInversion(iterations=options.iterations, weighted=False),
                ),
                ("sme", SurrogateInversion(iterations=options.iterations)),
                ("epoch-matching", EpochMatching(iterations=options.iterations)),
            ]
            for label, attack in attacks:
                began = time.perf_counter()
                found = list(attack.on_many(seen))
                values = []
                for images, reconstruction in zip(truths, found, strict=True):
                    pixels = denormalise(reconstruction.images.cpu(), data.mean, data.std).clamp(
                        0, 1
                    )
                    pairs = assign_reconstructions(pixels, images)
                    values += psnr(pixels[pairs], images, data_range=1.0).tolist()
                print(
                    json.dumps(
                        {
                            "model": name,
                            "lr": lr,
                            "attack": label,
                            "mean": sum(values) / len(values),
                            "psnr": values,
                            "iterations": options.iterations,
                            "seconds": time.perf_counter() - began,
                        }
                    ),
                    flush=True,
                )


def observe(model: nn.Module, data, lr: float, options) -> tuple[list[Observation], list]:  # type: ignore[no-untyped-def]
    """What the server sees of clients with 8 images each, and these images."""
    training = LocalTraining(lr=lr, epochs=1, batch_size=2, momentum=0.9)
    orders = count_orders(8, 2, 4)
    seen, truths = [], []
    for victim in range(options.victims):
        indices = list(range(8 * victim, 8 * victim + 8))
        images, labels = data.images(indices), data.labels[indices]
        update, _ = train_client(
            model,
            images.to(options.device),
            labels.to(options.device),
            data=data,
            defense=NoDefense(),
            generator=generator(0, "client", victim),
            training=training,
        )
        knowledge = Knowledge(
            data.shape,
            len(data.classes),
            data.mean,
            data.std,
            batch_size=8,
            labels=labels.sort().values,
            optimiser=training.read_optimiser(),
            orders=orders,
        )
        seen.append(Server(model).receive(update, knowledge, client=victim))
        truths.append(images)
    return seen, truths


if __name__ == "__main__":
    main()
