"""How well shuffled patches are put back: masked jigsaw puzzles (MJP) with the pixels known.

    python benchmarks/unshuffle.py --data-dir DATA            # a table
    python benchmarks/unshuffle.py --data-dir DATA --json     # one JSON object
    python benchmarks/unshuffle.py --sets photos --images 8   # no data folder needed
    python benchmarks/unshuffle.py --sets photos --images 1 --gammas 0.1 --noises none

A mask covers the share gamma of an image's patches in blocks, and these are shuffled. The attacker
has all pixels, exact or with Gaussian noise on them, and knows the mask; it does not know the order
(see keyhole.attacks.jigsaw). What it finds is judged here:

- ``right``: the share of covered cells that show the right patch;
- ``adjoin``: the share of seams of covered cells at which two true neighbours meet;
- ``confidence``: what the attacker itself expects ``right`` to be;
- SSIM with the original: of the image as it was ``shuffled``, as it was ``unshuffled``, and
  ``in order``, which is what a perfect answer would have;
- ``seconds`` on one thread, for one image.

Patches that look alike (a white background) cannot be told apart: they count as wrong in ``right``
and ``adjoin``, and cost nothing in SSIM. 16 images a set take about five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from statistics import mean

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy start their threads

import torch
from torch import Tensor

from keyhole.attacks.jigsaw import unshuffle
from keyhole.data import load
from keyhole.metrics import ssim
from keyhole.models.block_masks import block_masks
from keyhole.models.puzzle import cut_patches, join_patches, random_orders
from keyhole.seeds import generator

SETS = {"photos": (224, 16), "imagenet-sample": (224, 16), "dia-cifar10": (32, 4)}
"""Sides of images and of patches, in pixels."""
GAMMAS = (0.1, 0.3, 0.5, 0.7, 0.9)
NOISES = {"none": 0.0, "30 dB": 10 ** (-30 / 20), "20 dB": 10 ** (-20 / 20)}
"""Standard deviation by PSNR."""

Row = dict[str, float]


def measure_image(truth: Tensor, patch: int, gamma: float, noise: float, seed: int) -> Row:
    """Shuffles one image ``[C, H, W]``, lets it be put in order, and compares with the truth."""
    grid = (truth.shape[1] // patch, truth.shape[2] // patch)
    draw = generator(seed, "unshuffle", str(gamma))
    covered = block_masks(1, grid, gamma, generator=draw)[0]
    order = random_orders(covered.view(1, -1), draw)[0]
    noisy = truth + noise * torch.randn(truth.shape, generator=draw)
    seen = join_patches(cut_patches(noisy[None], grid)[:, order], truth[None].shape, grid)[0]
    start = time.perf_counter()
    found = unshuffle(seen, covered)
    seconds = time.perf_counter() - start
    shown = order[found.order].view(grid)
    right = shown == torch.arange(len(order)).view(grid)
    stages = {"shuffled": seen, "unshuffled": found.image, "in order": noisy}
    return {
        "right": float(right[covered].double().mean()),
        "adjoin": float(find_true_seams(shown, covered).double().mean()),
        "confidence": found.confidence,
        **{name: compute_ssim(image, truth) for name, image in stages.items()},
        "seconds": seconds,
    }


def find_true_seams(shown: Tensor, covered: Tensor) -> Tensor:
    """For every seam that touches a covered cell whether true neighbours meet there."""
    columns = shown.shape[1]
    left, right = shown[:, :-1], shown[:, 1:]
    across = (right == left + 1) & (right % columns != 0)
    down = shown[1:] == shown[:-1] + columns
    return torch.cat([across[covered[:, :-1] | covered[:, 1:]], down[covered[:-1] | covered[1:]]])


def compute_ssim(image: Tensor, truth: Tensor) -> float:
    return float(ssim(image.clamp(0, 1)[None], truth[None], data_range=1.0))


def measure(
    name: str, images: int, data_dir: str | None, *, gammas: Sequence[float], noises: Sequence[str]
) -> dict[str, Row]:
    """The means over so many images of a set, by noise and gamma."""
    size, patch = SETS[name]
    data = load(name, image_size=size, data_dir=data_dir)
    last = images - 1 if data.curated else len(data) - 1
    truths = data.images(torch.linspace(0, last, images).long().tolist())
    found = {}
    for noise in noises:
        for gamma in gammas:
            print(f"{name}, noise {noise}, gamma {gamma} ...", file=sys.stderr, flush=True)
            rows = [
                measure_image(truth, patch, gamma, NOISES[noise], i)
                for i, truth in enumerate(truths)
            ]
            found[f"{noise}, {gamma}"] = {key: mean(row[key] for row in rows) for key in rows[0]}
    return found


def format_results(found: dict[str, dict[str, Row]]) -> str:
    """One line for each kind of noise and gamma."""
    lines = []
    for name, rows in found.items():
        size, patch = SETS[name]
        heads = next(iter(rows.values()))
        lines += ["", f"{name}: {size} px in patches of {patch} px"]
        lines.append(f"{'noise, gamma':<14}" + "".join(f"{head:>12}" for head in heads))
        for kind, row in rows.items():
            lines.append(f"{kind:<14}" + "".join(f"{value:>12.3f}" for value in row.values()))
    return "\n".join(lines[1:])


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--sets", default=",".join(SETS), help="names, joined by commas")
    parser.add_argument("--images", type=int, default=16, help="of each set")
    gammas = ",".join(map(str, GAMMAS))
    parser.add_argument("--gammas", default=gammas, help="shares, joined by commas")
    parser.add_argument("--noises", default=",".join(NOISES), help="levels, joined by commas")
    parser.add_argument("--data-dir", help="where imagenet-sample and dia-cifar10 are")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    found = {
        name: measure(
            name,
            arguments.images,
            arguments.data_dir,
            gammas=[float(gamma) for gamma in arguments.gammas.split(",")],
            noises=arguments.noises.split(","),
        )
        for name in arguments.sets.split(",")
    }
    print(json.dumps(found, indent=2) if arguments.json else format_results(found))


if __name__ == "__main__":
    main()
