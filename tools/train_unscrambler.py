"""Trains the network that ships with the jigsaw solver.

    python tools/train_unscrambler.py OUT.safetensors --data-dir DATA

The shipped file, src/keyhole/attacks/jigsaw/learned/weights/regions8.safetensors, was trained with
the defaults. See tools/README.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keyhole.attacks.jigsaw.learned import save_unscrambler
from keyhole.errors import KeyholeError
from keyhole_studies.unscrambler_training import (
    UnscramblerSettings,
    load_public_images,
    train_unscrambler,
)
from keyhole_studies.unscrambler_training.public import TRAINED_ON

REPORT_EVERY = 100
"""Steps between two lines of progress."""


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    defaults = UnscramblerSettings()
    parser = argparse.ArgumentParser(description="Trains an unscrambler.")
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    parser.add_argument("--data-dir", help="the folder of MNIST and tiny-imagenet")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most", type=int, help="so many images of each set, for a trial")
    for name in ("steps", "puzzles", "batch_size", "width", "depth", "seed"):
        flag = "--" + name.replace("_", "-")
        default = getattr(defaults, name)
        parser.add_argument(flag, type=int, default=default, help=f"default: {default}")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    settings = UnscramblerSettings(
        steps=arguments.steps,
        puzzles=arguments.puzzles,
        batch_size=arguments.batch_size,
        width=arguments.width,
        depth=arguments.depth,
        seed=arguments.seed,
    )

    def report(step: int, loss: float) -> None:
        if (step + 1) % REPORT_EVERY == 0 or step + 1 == settings.steps:
            print(f"step {step + 1} of {settings.steps}: {loss:.3f} nats", flush=True)

    try:
        sets = load_public_images(arguments.data_dir, most=arguments.most)
        there = [replace(images, pixels=images.pixels.to(arguments.device)) for images in sets]
        network = train_unscrambler(there, settings, progress=report)
        save_unscrambler(
            network,
            arguments.out,
            trained_on=TRAINED_ON,
            steps=settings.steps,
            seed=settings.seed,
        )
    except KeyholeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
