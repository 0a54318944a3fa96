"""Trains the unscrambler that comes with Keyhole.

python -m keyhole.attacks.unshuffle.learned OUT.safetensors --data-dir DATA
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from keyhole.attacks.unshuffle.learned.public import TRAINED_ON, public_albums
from keyhole.attacks.unshuffle.learned.shipped import save_unscrambler
from keyhole.attacks.unshuffle.learned.training import Lesson, learn
from keyhole.errors import KeyholeError


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    usual = Lesson()
    parser = argparse.ArgumentParser(
        prog="python -m keyhole.attacks.unshuffle.learned", description="Trains an unscrambler."
    )
    parser.add_argument("out", type=Path, help="the safetensors file to write")
    parser.add_argument("--data-dir", help="the folder of MNIST and tiny-imagenet")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--most", type=int, help="so many images of each album, for a trial")
    for name in ("steps", "puzzles", "batch_size", "width", "depth", "seed"):
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=getattr(usual, name))
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    asked = parse(argv)
    lesson = Lesson(
        steps=asked.steps,
        puzzles=asked.puzzles,
        batch_size=asked.batch_size,
        width=asked.width,
        depth=asked.depth,
        seed=asked.seed,
    )

    def told(step: int, loss: float) -> None:
        if (step + 1) % 100 == 0 or step + 1 == lesson.steps:
            print(f"step {step + 1} of {lesson.steps}: {loss:.3f} nats", flush=True)

    try:
        albums = public_albums(asked.data_dir, most=asked.most)
        there = [replace(album, pixels=album.pixels.to(asked.device)) for album in albums]
        network = learn(there, lesson, told=told)
        save_unscrambler(
            network, asked.out, trained_on=TRAINED_ON, steps=lesson.steps, seed=lesson.seed
        )
    except KeyholeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
