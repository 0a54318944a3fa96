"""What TIP costs a client: its time over that of one local training.

    python benchmarks/tip.py                                 # ResNet-18 at 32 px, one thread
    python benchmarks/tip.py --model lenet --images 2 --turns 1
    python benchmarks/tip.py --device cuda --images 500 --json

The client trains as in the paper: 2 epochs in batches of 32, plain SGD. Training and defense take
turns, so that whatever else the machine does hits both alike. ``tip over training`` is the median
of TIP's times over the median of the trainings'; 0.05 is 5% more. Its two parts are also told: the
one pass that ranks the channels, and all the rest, which is noise in the frequency domain; and
beside it the noise of DP and AGP, and TIP's noise one slice at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from keyhole.defenses import Agp, ClientSide, Dp, Tip
from keyhole.defenses.guidance import choose_important_channels
from keyhole.defenses.spectra import find_high_bins
from keyhole.federation import LocalTraining
from keyhole.federation.client import compute_local_update
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.update import Update

TRAINING = LocalTraining(lr=0.001, epochs=2, batch_size=32)


class TimedClient:
    """One client with its images, and an update of its own."""

    def __init__(self, model: str, images: int, device: torch.device) -> None:
        self.device = device
        draw = generator(0, "benchmark")
        self.model: nn.Module = build(model, classes=10, channels=3, image_size=32).to(device)
        self.images = torch.rand(images, 3, 32, 32, generator=draw).to(device)
        self.labels = torch.arange(images, device=device) % 10
        self.update = self.train()

    def side(self) -> ClientSide:
        return ClientSide(generator(1), self.model, self.images, self.labels)

    def train(self) -> Update:
        return compute_local_update(self.model, self.images, self.labels, training=TRAINING, seed=0)

    def rank(self) -> dict[str, Tensor]:
        options: dict[str, Any] = {"ratio": 0.1, "absolute": False, "defense": "tip"}
        return choose_important_channels(self.update, self.side(), **options)

    def slice_by_slice(self) -> dict[str, Tensor]:
        """The algorithm as it is printed: for each kernel, for each channel in it."""
        made = {}
        draw, chosen = generator(1), self.rank()
        for name, conv in Tip().noisy_layers(self.model).items():
            weight = self.update.change[f"{name}.weight"].clone()
            mask = find_high_bins(*conv.kernel_size, 0.5).to(weight)
            for kernel in chosen[name].tolist():
                for channel in range(weight.shape[1]):
                    white = torch.randn(weight.shape[2:], generator=draw).to(weight)
                    spectrum = torch.fft.fft2(weight[kernel, channel])
                    spectrum = spectrum + 0.1 * mask * torch.fft.fft2(white)
                    weight[kernel, channel] = torch.fft.ifft2(spectrum).real
            made[name] = weight
        return made

    def seconds(self, work: Callable[[], object]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - began


def measure(model: str, images: int, device: torch.device, turns: int) -> dict[str, Any]:
    client = TimedClient(model, images, device)
    work: dict[str, Callable[[], object]] = {
        "training": client.train,
        "ranking": client.rank,
        "slice by slice": client.slice_by_slice,
        **{
            defense.name: lambda d=defense: d.on_update(client.update, client.side())
            for defense in (Tip(), Dp(), Agp())
        },
    }
    spent: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns + 1):
        for name, contender in work.items():
            taken = client.seconds(contender)
            if turn:  # the first warms up
                spent[name].append(taken)
    middle = {name: median(times) for name, times in spent.items()}
    return {
        "model": model,
        "device": str(device),
        "threads": torch.get_num_threads(),
        "images": images,
        "steps": TRAINING.count_steps(images),
        "tip over training": middle["tip"] / middle["training"],
        "ranking's part of tip": middle["ranking"] / middle["tip"],
        "slice by slice over tip": middle["slice by slice"] / middle["tip"],
        "dp over training": middle["dp"] / middle["training"],
        "agp over training": middle["agp"] / middle["training"],
        "seconds": middle,
    }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=100, help="of the client; the paper's: 500")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    chosen = parser.parse_args(argv)
    found = measure(chosen.model, chosen.images, torch.device(chosen.device), chosen.turns)
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    print(f"{found['model']}, {found['images']} images of 32 px, {found['steps']} local steps")
    for name, value in found.items():
        if isinstance(value, float):
            print(f"  {name:<26} {value:8.3f}")


if __name__ == "__main__":
    main()
