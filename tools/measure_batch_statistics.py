"""ResNet-18 clients in train mode that share buffers: what the batch statistics add to `ig`.

    python tools/measure_batch_statistics.py --data-dir DATA --iterations 3000 --victims 8 \\
        --device cuda

Prints one JSON object a line: use of the statistics, weight, batch size, mean PSNR, SSIM, share of
images with an SSIM of .5 or more.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn

from keyhole.attacks import Attack, Gifd, InvertingGradients
from keyhole.data import ImageSet, denormalise, load
from keyhole.defenses import NoDefense
from keyhole.federation import LocalTraining, train_client
from keyhole.metrics import assign_reconstructions, psnr, ssim
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server

USES = ("ignored", "prior", "anchored", "both")


def main() -> None:
    """Lets clients train and attacks them with each use of their statistics."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir")
    parser.add_argument("--weights", help="safetensors of trained weights")
    parser.add_argument("--iterations", type=int, default=3000)
    parser.add_argument("--victims", type=int, default=4)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1])
    parser.add_argument("--statistics-weight", type=float, nargs="+", default=[0.01])
    parser.add_argument("--uses", nargs="+", choices=USES, default=list(USES))
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--tv", type=float, default=1e-4)
    parser.add_argument("--double", action="store_true", help="compute in float64")
    parser.add_argument("--gifd", action="store_true", help="GIFD with its prior besides")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    data = load("dia-cifar10", data_dir=options.data_dir)
    weights = None if options.weights is None else Path(options.weights)
    model = build("resnet18", classes=10, seed=0, weights=weights).to(options.device)
    model = model.double() if options.double else model
    for batch in options.batch_size:
        seen, truths = observe(model, data, batch, options.victims)
        for use in options.uses:
            for weight in options.statistics_weight if use in ("prior", "both") else [0.0]:
                for attack in make_attacks(use, weight, options):
                    began = time.perf_counter()
                    line = score(list(attack.on_many(seen)), truths, data)
                    line |= {"attack": attack.label, "use": use, "weight": weight, "batch": batch}
                    line |= {"iterations": options.iterations, "victims": options.victims}
                    line["seconds"] = time.perf_counter() - began
                    print(json.dumps(line), flush=True)


def make_attacks(use: str, weight: float, options: argparse.Namespace) -> list[Attack]:
    """The attacks with one use of the statistics."""
    shared = {
        "iterations": options.iterations,
        "trials": options.trials,
        "batch_statistics": use,
        "statistics_weight": weight,
    }
    attacks: list[Attack] = [InvertingGradients(tv=options.tv, **shared)]
    if options.gifd:
        attacks.append(Gifd(pixels=options.iterations, **{**shared, "iterations": 500}))
    return attacks


def observe(
    model: nn.Module, data: ImageSet, batch: int, victims: int
) -> tuple[list[Observation], list[torch.Tensor]]:
    """What the server sees of clients in train mode who share weights, and their images."""
    like, training, server = next(model.parameters()), LocalTraining(lr=0.1), Server(model)
    seen, truths = [], []
    for victim in range(victims):
        indices = list(range(batch * victim, batch * (victim + 1)))
        images, labels = data.images(indices), data.labels[indices]
        update, _ = train_client(
            model,
            images.to(like),
            labels.to(like.device),
            data=data,
            defense=NoDefense(),
            generator=generator(0, "client", victim),
            training=training,
        )
        knowledge = Knowledge(data.shape, 10, data.mean, data.std, batch_size=batch, labels=labels)
        seen.append(server.receive(update, knowledge, client=victim))
        truths.append(images)
    return seen, truths


def score(found: list, truths: list[torch.Tensor], data: ImageSet) -> dict[str, float]:  # type: ignore[type-arg]
    """Mean PSNR and SSIM, and the share of images with an SSIM of at least .5."""
    decibels: list[float] = []
    likeness: list[float] = []
    for images, reconstruction in zip(truths, found, strict=True):
        pixels = denormalise(reconstruction.images.cpu().float(), data.mean, data.std).clamp(0, 1)
        pixels = pixels[assign_reconstructions(pixels, images)]
        decibels += psnr(pixels, images, data_range=1.0).tolist()
        likeness += ssim(pixels, images, data_range=1.0).tolist()
    return {
        "psnr": sum(decibels) / len(decibels),
        "ssim": sum(likeness) / len(likeness),
        "ssim_half": sum(each >= 0.5 for each in likeness) / len(likeness),
    }


if __name__ == "__main__":
    main()
