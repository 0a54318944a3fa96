"""How many images SPEAR takes out of one update of a ReLU network, by batch.

    python benchmarks/spear.py --json                       # 8, 16 and 25 images, 4 clients each
    python benchmarks/spear.py --batches 2 --victims 1 --data digits

The network is that of the paper's experiments in kind: three fully connected layers of 512 units
with ReLU and a last one, with biases and fresh weights; clients share the gradient of one step.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from keyhole.attacks import Spear
from keyhole.auditing import audit, read_versions

WIDTH, DEPTH = 512, 3
READ_FROM = 60.0
"""PSNR in dB from which an image counts as read exactly."""


def relu_mlp(classes: int, channels: int, image_size: tuple[int, int]) -> nn.Module:
    """Three layers of 512 units with ReLU, and the last one."""
    layers: list[nn.Module] = [nn.Flatten()]
    seen = channels * image_size[0] * image_size[1]
    for _ in range(DEPTH):
        layers += [nn.Linear(seen, WIDTH), nn.ReLU()]
        seen = WIDTH
    return nn.Sequential(*layers, nn.Linear(seen, classes))


def measure(
    batch: int, victims: int, *, data: str, search: str, seed: int, device: str
) -> dict[str, Any]:
    """What SPEAR reads of batches of one size."""
    spear = Spear(search=search, rounds=Spear.published["rounds"] if search == "sampled" else 40)
    result = audit(
        model="spear:relu_mlp",
        data=data,
        attacks=[spear],
        victims=victims,
        batch_size=batch,
        seed=seed,
        device=device,
    )
    (found,) = result.findings
    decibels = found.metrics["psnr"].per_image
    return {
        "batch": batch,
        "images": len(decibels),
        "exact": sum(each > READ_FROM for each in decibels),
        "least_psnr": round(min(decibels), 1),
        "mean_psnr": round(sum(decibels) / len(decibels), 1),
        "directions": found.diagnostics.get("directions"),
        "rounds": found.diagnostics.get("rounds"),
        "seconds": round(found.seconds, 1),
        "notes": [note for note in found.notes if "directions" in note],
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="SPEAR by batch.")
    parser.add_argument("--batches", default="8,16,25", help="images of a client")
    parser.add_argument("--victims", type=int, default=4, help="clients for each batch")
    parser.add_argument("--data", default="dia-cifar10", help="the images")
    parser.add_argument("--search", choices=("minimised", "sampled"), default="minimised")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    rows = [
        measure(
            int(batch),
            given.victims,
            data=given.data,
            search=given.search,
            seed=given.seed,
            device=given.device,
        )
        for batch in given.batches.split(",")
    ]
    found = {
        "model": f"{DEPTH} layers of {WIDTH} units with ReLU, one linear, biases, fresh weights",
        "data": given.data,
        "search": given.search,
        "seed": given.seed,
        "device": given.device,
        "torch_threads": torch.get_num_threads(),
        "versions": read_versions(),
        "rows": rows,
    }
    if given.json:
        print(json.dumps(found, indent=1))
        return 0
    for row in rows:
        print(
            f"batch {row['batch']}: {row['exact']} of {row['images']} images above "
            f"{READ_FROM:g} dB, least {row['least_psnr']} dB, {row['seconds']} s"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
