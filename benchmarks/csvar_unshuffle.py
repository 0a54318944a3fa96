"""How well CSVAR's shuffled images are put back together, with the pixels known.

    python benchmarks/csvar_unshuffle.py --data-dir DATA                # tables
    python benchmarks/csvar_unshuffle.py --data-dir DATA --json         # one JSON object
    python benchmarks/csvar_unshuffle.py --sets faces                   # no data folder needed
    python benchmarks/csvar_unshuffle.py --sets faces --images 2 --gallery 8
    python benchmarks/csvar_unshuffle.py --pictures FOLDER ...          # and what it looks like

The attacker has the shuffled images, knows CSVAR and has no key (see
keyhole.attacks.jigsaw.undo.solve_by_size). Compared with the originals:

- ``shuffled``: what travels; ``thumbnail``: what is certain; ``solved``: the blocks in the order
  found; ``expected``: the mean over the attacker's beliefs;
- SSIM, PSNR (an exact image counts CAP dB), the share of re-identified images (the original is the
  most alike of a gallery), and ``right``: the share of pixels that are the true ones. Blocks that
  look the same are the same.
- ``confidence``: what the attacker itself expects ``right`` to be; ``seconds`` for one image on one
  thread.

The rows below are of noisy versions, as gradient inversion gives them: white noise on each of K
versions, which are combined before they are solved; the ``expected`` image is judged.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch and numpy start their threads

import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.utils import save_image

from keyhole.attacks.jigsaw.regions import build_thumbnail, combine_versions
from keyhole.attacks.jigsaw.undo import solve_by_size
from keyhole.data import load
from keyhole.defenses.csvar import Csvar
from keyhole.metrics import psnr, reidentify, ssim
from keyhole.seeds import generator

SETS = {"cifar10": 64, "imagenet-sample": 16, "orl-faces": 32, "faces": 64, "mnist": 64}
"""Images of each that are attacked."""
VERSIONS = (1, 16)
NOISES = {"20 dB": 10 ** (-20 / 20), "30 dB": 10 ** (-30 / 20)}
"""Standard deviation by PSNR."""
CAP = 60.0

Row = dict[str, float]


def score_images(found: Tensor, truth: Tensor, gallery: Tensor) -> Row:
    """Means over images; the truths are the first of the gallery."""
    found = found.clamp(0, 1)
    return {
        "SSIM": float(ssim(found, truth, data_range=1.0).mean()),
        "PSNR": float(psnr(found, truth, data_range=1.0).clamp_max(CAP).mean()),
        "re-identified": float(reidentify(found, gallery, torch.arange(len(found))).mean()),
        "right": float((found == truth).double().mean()),
    }


def draw_gallery(name: str, count: int, data_dir: str | None) -> Tensor:
    """A gallery ``[count, C, H, W]`` whose first images are attacked."""
    data = load(name, data_dir=data_dir)
    some = torch.randperm(len(data), generator=generator(0, "gallery", name))[:count]
    return data.images(some.tolist())


def measure(name: str, images: int, gallery: Tensor, pictures: Path | None) -> dict[str, Row]:
    truth = gallery[:images]
    shuffled = Csvar().shuffle(truth, torch.arange(len(truth)))
    start = time.perf_counter()
    found = solve_by_size(shuffled, Csvar())
    seconds = (time.perf_counter() - start) / len(truth)
    stages = {"shuffled": shuffled, "thumbnail": build_thumbnail(shuffled), "solved": found.images}
    if pictures:
        save_sheet(pictures / f"{name}.png", [truth, *stages.values(), found.expected])
    rows = {stage: score_images(images, truth, gallery) for stage, images in stages.items()}
    rows["solved"] |= {"confidence": float(found.confidence.mean()), "seconds": seconds}
    return rows | {"expected": score_images(found.expected, truth, gallery)}


def measure_noisy(name: str, images: int, gallery: Tensor) -> dict[str, Row]:
    """By the number of versions and the noise on them."""
    truth = gallery[: images // 2]
    draw = generator(0, "noise", name)
    rows = {}
    for count, (level, sigma) in product(VERSIONS, NOISES.items()):
        seeds = torch.arange(count * len(truth)).view(count, -1)
        exact = torch.stack([Csvar().shuffle(truth, some) for some in seeds])
        noisy = exact + sigma * torch.randn(exact.shape, generator=draw)
        rows[f"{count} at {level}"] = score_images(
            solve_by_size(combine_versions(noisy), Csvar()).expected, truth, gallery
        )
    return rows


def save_sheet(path: Path, columns: Sequence[Tensor], rows: int = 6) -> None:
    """Original, shuffled, thumbnail, solved, expected, side by side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = torch.stack([column[:rows] for column in columns], 1).flatten(0, 1)
    scale = max(1, 160 // images.shape[-1])
    save_image(F.interpolate(images.clamp(0, 1), scale_factor=scale), path, nrow=len(columns))


def format_rows(name: str, rows: dict[str, Row]) -> str:
    heads = ("SSIM", "PSNR", "re-identified", "right", "confidence", "seconds")
    lines = ["", f"{name:<18}" + "".join(f"{head:>14}" for head in heads)]
    for stage, row in rows.items():
        cells = (f"{row[head]:>14.3f}" if head in row else f"{'':>14}" for head in heads)
        lines.append(f"{stage:<18}" + "".join(cells).rstrip())
    return "\n".join(lines)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--sets", default=",".join(SETS), help="names, joined by commas")
    parser.add_argument("--images", type=int, help="of each set, at least 2 (default: see SETS)")
    parser.add_argument("--gallery", type=int, default=200, help="images to re-identify among")
    parser.add_argument("--data-dir", help="where the sets that are not built in lie")
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of what was found")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parse_arguments(argv)
    found = {}
    for name in arguments.sets.split(","):
        print(f"{name} ...", file=sys.stderr, flush=True)
        images = arguments.images or SETS[name]
        gallery = draw_gallery(name, arguments.gallery, arguments.data_dir)
        found[name] = measure(name, images, gallery, arguments.pictures)
        found[name] |= measure_noisy(name, images, gallery)
        if not arguments.json:
            print(format_rows(name, found[name]), flush=True)
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
