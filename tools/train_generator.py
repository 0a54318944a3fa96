"""Trains the generator that ships with ``gifd``: a class-conditional GAN for CIFAR-10.

    python tools/train_generator.py OUT.safetensors --data-dir DATA --device cuda

The shipped file, src/keyhole/attacks/generative/weights/cifar10.safetensors, was trained for as
many steps as the defaults say. See tools/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from keyhole.attacks.generative import public_half, save_generator
from keyhole.data import load
from keyhole.errors import KeyholeError
from keyhole_studies.generator_training import GeneratorSettings, train_generator

TRAINED_ON = "odd half of the CIFAR-10 training set, without the victims of dia-cifar10"
SHIPPED_STEPS = 1613
"""Steps of the shipped generator: 95 seconds on one H200."""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = GeneratorSettings(steps=SHIPPED_STEPS)
    parser = argparse.ArgumentParser(description="Trains a generator for gifd.")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    parser.add_argument("--data-dir", help="the folder of CIFAR-10")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most", type=int, help="so many images, for a trial")
    parser.add_argument("--seconds", type=float, help="the training ends after so long")
    for name in ("steps", "batch", "latent", "seed"):
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    for name in ("features", "discriminator_features"):
        flag = "--" + name.replace("_", "-")
        default = getattr(defaults, name)
        parser.add_argument(flag, type=int, nargs="+", default=default, help=f"default: {default}")
    return parser.parse_args(argv)


def load_images(data_dir: str | None, most: int | None) -> tuple[Tensor, Tensor, int]:
    """Images ``[n, 3, 32, 32]``, uint8, their labels ``[n]``, and the number of classes."""
    data = load("cifar10", data_dir=data_dir)
    chosen = public_half(data)[:most]
    return data.pixels(chosen), data.labels[chosen], len(data.classes)


def report(step: int, share: float, text: str) -> None:
    print(f"step {step}, {share:.0%} done: {text}", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    settings = GeneratorSettings(
        steps=arguments.steps,
        seconds=arguments.seconds,
        batch=arguments.batch,
        latent=arguments.latent,
        features=tuple(arguments.features),
        discriminator_features=tuple(arguments.discriminator_features),
        seed=arguments.seed,
    )
    device = torch.device(arguments.device)
    try:
        images, labels, classes = load_images(arguments.data_dir, arguments.most)
        trained = train_generator(
            images.to(device), labels.to(device), settings, classes=classes, progress=report
        )
        save_generator(trained.generator.cpu(), arguments.out, trained_on=TRAINED_ON)
    except KeyholeError as error:
        sys.exit(str(error))
    print(f"{trained.steps} steps in {trained.seconds:.0f} s: {arguments.out}")


if __name__ == "__main__":
    main()
