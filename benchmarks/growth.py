"""How cost grows with victims, images, batches and clients: exponents on a log-log scale.

    python benchmarks/growth.py                       # small, on a CPU
    python benchmarks/growth.py --device cuda --victims 1,2,8,32,128,512 --sides 32,64,128,224 \\
        --batches 1,4,16,64 --clients 1,10,100,1000
    python benchmarks/growth.py --read results/engine/growth_cpu.json --draw docs/img/growth.png

Four things grow, each alone: the victims attacked at once, the side of their images, the images of
a client's batch, and the clients of a round of training. ``exponent`` is the slope of the straight
line through log size and log seconds, ``last`` the slope between the two largest sizes: fixed
costs, which make the whole slope too small, no longer count there. 1 is linear; the cost of images
is linear in their pixels, which grow with the square of the side.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from contenders import make_runner
from training import Case, make_federation

from keyhole.attacks import ATTACKS, Matching
from keyhole.attacks.matching.allocator import keep_memory
from keyhole.data import ImageSet
from keyhole.defenses import NoDefense
from keyhole.federation import train_client
from keyhole.models import build
from keyhole.seeds import generator
from keyhole.threat import Knowledge, Observation, Server

CLASSES = 10


def make_images(count: int, side: int) -> ImageSet:
    """Noise of any size: what a step costs does not depend on what it sees."""
    draw = generator(0, "growth")
    pixels = torch.randint(256, (count, 3, side, side), generator=draw, dtype=torch.uint8)
    return ImageSet(
        name="noise",
        pixels=lambda indices: pixels[torch.as_tensor(indices)],
        labels=torch.arange(count) % CLASSES,
        classes=tuple(str(c) for c in range(CLASSES)),
        size=(side, side),
        mean=(0.5, 0.5, 0.5),
        std=(0.25, 0.25, 0.25),
    )


def observe(model: str, victims: int, side: int, batch: int, device: str) -> list[Observation]:
    """What the server saw of so many clients, each with one batch."""
    data = make_images(victims * batch, side)
    network = build(model, classes=CLASSES, channels=3, image_size=side, seed=0).to(device)
    server = Server(network)
    found = []
    for client in range(victims):
        chosen = list(range(client * batch, (client + 1) * batch))
        update, _ = train_client(
            network,
            data.images(chosen).to(device),
            data.labels[chosen].to(device),
            data=data,
            defense=NoDefense(),
            generator=generator(0, "client", client),
        )
        knowledge = Knowledge(
            shape=data.shape,
            classes=CLASSES,
            mean=data.mean,
            std=data.std,
            batch_size=batch,
            labels=data.labels[chosen],
        )
        found.append(server.receive(update, knowledge, client=client))
    return found


def time_attack(model: str, victims: int, side: int, batch: int, device: str, turns: int) -> float:
    """Seconds of one iteration of ``ig`` on all victims at once."""
    attack = ATTACKS.parse("ig")
    assert isinstance(attack, Matching)
    runner = make_runner(attack, observe(model, victims, side, batch, device))
    everyone = range(victims)
    matcher = runner.make_matcher(everyone)
    state = runner._start(everyone, attempt=0)
    advance = runner._make_stepper(state, matcher, attack.iterations)
    return time_work(lambda: advance(1), device, turns)


def time_round(model: str, clients: int, device: str, turns: int) -> float:
    """Seconds of a round of training with eight images per client."""
    case = Case(model, clients, batch=4, images=8, augment=False)
    data = make_images(clients * 8, 32)
    network = build(model, classes=CLASSES, channels=3, image_size=32, seed=0).to(device)
    way = "graph" if device == "cuda" else "loop"
    federation = make_federation(case, way, network, data)
    return time_work(lambda: federation.run_round(1), device, turns)


def time_work(work: Callable[[], object], device: str, turns: int) -> float:
    """The median time of some work, after it was done once.

    On a CPU it is processor time, which other processes change least.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    seconds = []
    for _ in range(turns + 1):
        began = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - began)
    return median(seconds[1:])


def describe_machine(device: str) -> str:
    """The machine in words."""
    cores = len(os.sched_getaffinity(0))
    return torch.cuda.get_device_name() if device == "cuda" else f"{cores} cores of a shared CPU"


def describe_growth(sizes: Sequence[int], seconds: Sequence[float]) -> dict[str, Any]:
    """The sizes, their seconds and the exponents.

    >>> describe_growth([1, 2, 4], [3.0, 6.0, 12.0])["exponent"]
    1.0
    """
    xs, ys = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread = sum((a - x) ** 2 for a in xs)
    slope = sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / spread
    last = (ys[-1] - ys[-2]) / (xs[-1] - xs[-2])
    return {
        "sizes": list(sizes),
        "seconds": [float(f"{s:.4g}") for s in seconds],
        "exponent": round(slope, 3),
        "last": round(last, 3),
    }


LABELS = {
    "victims": "victims at once",
    "side": "side of the images, px",
    "batch": "images of a client's batch",
    "clients": "clients of a round",
}


def draw_growth(found: Mapping[str, Any], file: Path) -> None:
    """Draws the four kinds of growth on log-log axes, each beside the line that is linear."""
    from keyhole_studies.drawing import COLOURS, GREY, save_png

    def draw(figure: Any) -> None:
        for place, (name, label) in enumerate(LABELS.items()):
            axes, row = figure.add_subplot(1, 4, place + 1), found[name]
            sizes, seconds = row["sizes"], row["seconds"]
            power = 2 if name == "side" else 1
            line = [seconds[-1] * (size / sizes[-1]) ** power for size in sizes]
            linear = "as its pixels" if power == 2 else "linear"
            axes.loglog(sizes, line, "--", color=GREY, label=linear)
            axes.loglog(sizes, seconds, "o-", color=COLOURS[0], markersize=3, label="measured")
            axes.set_xlabel(label)
            axes.set_xticks(sizes[:: 1 + len(sizes) // 5], minor=False)
            axes.xaxis.set_major_formatter("{x:.0f}")
            axes.minorticks_off()
            axes.set_title(f"exponent {row['exponent']:.2f}, at the end {row['last']:.2f}", size=9)
            if place == 0:
                axes.set_ylabel("seconds")
            axes.legend(frameon=False, fontsize=7)

    save_png(draw, file, size=(10, 2.6))


def parse_sizes(text: str) -> list[int]:
    """Sizes joined by commas: two at least."""
    return [int(part) for part in text.split(",")]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object, nothing else")
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--victims", type=parse_sizes, default=[1, 4, 16, 64])
    parser.add_argument("--sides", type=parse_sizes, default=[32, 64, 128])
    parser.add_argument("--batches", type=parse_sizes, default=[1, 4, 16])
    parser.add_argument("--clients", type=parse_sizes, default=[1, 10, 100])
    parser.add_argument("--turns", type=int, default=5, help="timed runs of each size")
    parser.add_argument("--draw", type=Path, help="PNG file for the four plots")
    parser.add_argument("--read", type=Path, help="draw this result instead of measuring")
    parser.add_argument("--threads", type=int, help="threads of a CPU; without it, torch's own")
    chosen = parser.parse_args(argv)
    if chosen.read:
        draw_growth(json.loads(chosen.read.read_text(encoding="utf-8")), chosen.draw)
        return
    keep_memory()
    if chosen.threads:
        torch.set_num_threads(chosen.threads)
    model, device, turns = chosen.model, chosen.device, chosen.turns
    works: dict[str, tuple[list[int], Callable[[int], float]]] = {
        "victims": (chosen.victims, lambda n: time_attack(model, n, 32, 1, device, turns)),
        "side": (chosen.sides, lambda n: time_attack(model, 4, n, 1, device, turns)),
        "batch": (chosen.batches, lambda n: time_attack(model, 4, 32, n, device, turns)),
        "clients": (chosen.clients, lambda n: time_round(model, n, device, turns)),
    }
    found: dict[str, Any] = {
        "command": " ".join(["python benchmarks/growth.py", *(argv or sys.argv[1:])]),
        "model": model,
        "device": device,
        "machine": describe_machine(device),
        "clock": "wall" if device == "cuda" else "processor time",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "turns": turns,
        "seed": 0,
    }
    for name, (sizes, work) in works.items():
        print(f"growing {name} ...", file=sys.stderr, flush=True)
        found[name] = describe_growth(sizes, [work(size) for size in sizes])
    if chosen.draw:
        draw_growth(found, chosen.draw)
    if chosen.json:
        print(json.dumps(found, indent=2))
        return
    for name in works:
        row = found[name]
        times = ", ".join(
            f"{n}: {s:.3g} s" for n, s in zip(row["sizes"], row["seconds"], strict=True)
        )
        print(f"{name:<10}exponent {row['exponent']:<7}last {row['last']:<7}{times}")


if __name__ == "__main__":
    main()
