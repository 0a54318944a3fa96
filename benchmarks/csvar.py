"""How fast CSVAR shuffles, against a plain loop over regions and against copying and writing.

    python benchmarks/csvar.py                 # 224 px colour and 32 px colour, one thread
    python benchmarks/csvar.py --device cuda --json

All contenders shuffle the same images in turns, so that whatever else the machine does hits all
alike. A ratio says how many times as long as ours another takes; ``images a second`` is ours.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch import Tensor

from keyhole.defenses import Csvar
from keyhole.defenses.regions import region_side
from keyhole.defenses.shuffles import draw_keyed_numbers, map_chunks

Contender = Callable[[Tensor], object]


def shuffle_by_loop(images: Tensor) -> np.ndarray:
    """One image, one region, one plane, one block at a time (whole regions only)."""
    pixels = images.numpy()
    made = pixels.copy()
    side = region_side(*images.shape[-2:])
    draw = np.random.default_rng(0)
    for image, out in zip(pixels, made, strict=True):
        corners = [
            (top, left)
            for top in range(0, image.shape[1], side)
            for left in range(0, image.shape[2], side)
        ]
        parts = [image[:, top : top + side, left : left + side] for top, left in corners]
        spread = [np.mean([plane.var() for plane in part]) for part in parts]
        middle = np.median(spread)
        for (top, left), part, value in zip(corners, parts, spread, strict=True):
            block = side // 4 if value > middle else side // 2
            across = side // block
            for plane in range(len(image)):
                for place, source in enumerate(draw.permutation(across * across)):
                    y, x = (block * i for i in divmod(place, across))
                    v, u = (block * i for i in divmod(int(source), across))
                    out[plane, top + y : top + y + block, left + x : left + x + block] = part[
                        plane, v : v + block, u : u + block
                    ]
    return made


def shuffle(images: Tensor) -> Tensor:
    return Csvar().shuffle(images, torch.arange(len(images)))


def shuffle_by_key(images: Tensor) -> Tensor:
    """As the collection node does it: seeds by a keyed hash."""
    defense = Csvar()
    count = defense.count_draws(images)

    def some(part: Tensor, places: slice) -> Tensor:
        numbers = range(len(images))[places]
        draws = [draw_keyed_numbers(b"k" * 32, str(number), count) for number in numbers]
        return defense.plan_shuffle(part, torch.stack(draws)).apply(part)

    return map_chunks(images, some)


def make_writer(folder: Path) -> Contender:
    def write(images: Tensor) -> None:
        with (folder / "images").open("wb") as file:
            file.write(images.clone().cpu().numpy().tobytes())

    return write


def time_once(work: Contender, images: Tensor) -> float:
    began = time.perf_counter()
    work(images)
    if images.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compare_times(images: Tensor, turns: int, folder: Path) -> dict[str, float]:
    contenders: dict[str, Contender] = {"ours": shuffle, "copy and write": make_writer(folder)}
    if not images.is_cuda:
        contenders |= {"by a secret key": shuffle_by_key}
    spent: dict[str, list[float]] = {name: [] for name in contenders}
    few = images[: max(1, len(images) // 16)].cpu()
    loops = []
    for turn in range(turns + 1):
        for name, work in contenders.items():
            taken = time_once(work, images)
            if turn:
                spent[name].append(taken / len(images))
        if turn < 3:
            loops.append(time_once(shuffle_by_loop, few) / len(few))
    middle = {name: median(times) for name, times in spent.items()} | {"plain loop": median(loops)}
    own = middle.pop("ours")
    return {"images a second": 1 / own} | {name: value / own for name, value in middle.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(argv)
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for side, count in ((224, chosen.images), (32, 16 * chosen.images)):
            images = torch.randint(256, (count, 3, side, side), generator=draw, dtype=torch.uint8)
            found[f"{side} px"] = compare_times(
                images.to(chosen.device), chosen.turns, Path(folder)
            )
    if chosen.json:
        print(json.dumps({"device": chosen.device, **found}))
        return
    for name, values in found.items():
        print(f"{name}: {values.pop('images a second'):,.0f} images a second on one core")
        for contender, ratio in values.items():
            print(f"  {contender:<18} {ratio:7.2f} x our time")


if __name__ == "__main__":
    main()
