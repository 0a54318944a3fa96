"""Clients of 8 images and 4 local steps of 2 with momentum: attacks beside one large step.

    python tools/measure_local_steps.py --data-dir DATA --iterations 2000 --victims 4 --device cuda

Prints one JSON object a line: model, attack, learning rate, mean and single PSNR, SSIM. With
``--out FILE`` all of them are kept there, and lines that are there already are not measured again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from keyhole.atomic import read_json, write_json
from keyhole.attacks import (
    Attack,
    EpochMatching,
    FeatureDecoding,
    InvertingGradients,
    Reconstruction,
    SpearInversion,
    SurrogateInversion,
)
from keyhole.auditing import count_orders, read_versions
from keyhole.data import ImageSet, denormalise, load
from keyhole.defenses import NoDefense
from keyhole.federation import LocalTraining, train_client
from keyhole.metrics import assign_reconstructions, psnr, ssim
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server

CLIENT = "8 images, 1 epoch of 4 steps of 2, SGD with momentum .9, random weights, labels known"
"""What every client does."""


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
    parser.add_argument("--attacks", nargs="+", help="some of the attacks, by their labels")
    parser.add_argument("--out", type=Path, help="a JSON file to add to")
    options = parser.parse_args()
    data, known = load(options.data, data_dir=options.data_dir), Lines(options.out)
    for name in options.models:
        model = (
            quickstart(10)
            if name == "quickstart"
            else build(name, classes=10, channels=data.shape[0], image_size=data.size, seed=0)
        ).to(options.device)
        for lr in options.lr:
            seen, truths = observe(model, data, lr, options)
            for label, attack in choose_attacks(options.iterations, options.attacks):
                line = {
                    "model": name,
                    "data": options.data,
                    "lr": lr,
                    "attack": label,
                    "clients": options.victims,
                    "iterations": getattr(attack, "iterations", 0),
                }
                if known.has(line) or attack.incompatibilities(seen[0]):
                    continue
                began = time.perf_counter()
                line |= score(list(attack.on_many(seen)), truths, data)
                line["seconds"] = round(time.perf_counter() - began, 1)
                known.add(line)
                print(json.dumps(line), flush=True)


class Lines:
    """The lines measured so far, in a file if one is named."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.lines: list[dict[str, object]] = []
        if path is not None and path.is_file():
            self.lines = read_json(path)["rows"]

    def has(self, line: dict[str, object]) -> bool:
        """Whether there is one of the same settings."""
        return any(line.items() <= each.items() for each in self.scalars())

    def scalars(self) -> list[dict[str, object]]:
        """The lines without their lists."""
        return [{n: v for n, v in each.items() if not isinstance(v, list)} for each in self.lines]

    def add(self, line: dict[str, object]) -> None:
        """Keeps one more line."""
        self.lines.append(line)
        if self.path is not None:
            about = {"client": CLIENT, "seed": 0, "versions": read_versions()}
            write_json(self.path, {**about, "rows": self.lines})


def choose_attacks(iterations: int, chosen: Sequence[str] | None) -> list[tuple[str, Attack]]:
    """The attacks by label, all or some."""
    attacks: list[tuple[str, Attack]] = [
        ("one large step (ig)", InvertingGradients(iterations=iterations)),
        ("sme, images alike", SurrogateInversion(iterations=iterations, weighted=False)),
        ("sme", SurrogateInversion(iterations=iterations)),
        ("epoch-matching", EpochMatching(iterations=iterations)),
        ("epoch-matching, told nothing", EpochMatching(iterations=iterations, told=0)),
        ("decode", FeatureDecoding()),
        ("spear-ig", SpearInversion(iterations=iterations, lr=0.01)),
    ]
    return [(label, attack) for label, attack in attacks if chosen is None or label in chosen]


def score(
    found: list[Reconstruction], truths: list[torch.Tensor], data: ImageSet
) -> dict[str, object]:
    """Mean and single PSNR and SSIM, and how many images have an SSIM of at least .5."""
    decibels: list[float] = []
    likeness: list[float] = []
    for images, reconstruction in zip(truths, found, strict=True):
        if reconstruction.images is None:
            return {"notes": list(reconstruction.notes)}
        pixels = denormalise(reconstruction.images.cpu(), data.mean, data.std).clamp(0, 1)
        pixels = pixels[assign_reconstructions(pixels, images)]
        decibels += psnr(pixels, images, data_range=1.0).tolist()
        likeness += ssim(pixels, images, data_range=1.0).tolist()
    return {
        "mean": round(sum(decibels) / len(decibels), 2),
        "ssim": round(sum(likeness) / len(likeness), 3),
        "ssim_half": sum(each >= 0.5 for each in likeness),
        "images": len(likeness),
        "psnr": [round(each, 2) for each in decibels],
    }


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
