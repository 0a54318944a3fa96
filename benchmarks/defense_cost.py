"""What a round costs a client under each defense, beside a round without one.

    python benchmarks/defense_cost.py                            # LeNet, digits, 16 images a step
    python benchmarks/defense_cost.py --model resnet18 --data dia-cifar10 --steps 1 --json
    python benchmarks/defense_cost.py --only 'topk,svt,dropout + topk(k=0.01)'

Every defense trains the same client in turns, and the least processor time of its rounds counts, so
that other work on the machine matters little (run it on the CPU). A ratio says how many times as
long as a round without a defense it takes; ``own`` is the difference, in training steps without a
defense.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import nn

from keyhole.data import ImageSet, load
from keyhole.defenses import DEFENSES, Defense
from keyhole.errors import KeyholeError
from keyhole.federation import LocalTraining, train_client
from keyhole.models import build
from keyhole.seeds import generator

IMAGES = 16


def measure_round(model: nn.Module, data: ImageSet, defense: Defense, steps: int) -> float:
    """Seconds of the processor that a client takes for one round."""
    indices = list(range(IMAGES))
    images, labels = data.images(indices), data.labels[indices]
    began = time.process_time()
    train_client(
        model,
        images,
        labels,
        data=data,
        defense=defense,
        generator=generator(0, "benchmark"),
        training=LocalTraining(lr=0.01, steps=steps, batch_size=IMAGES),
    )
    return time.process_time() - began


def choose_defenses(names: list[str], model: nn.Module) -> tuple[dict[str, Defense], list[str]]:
    """The defenses that fit the model, and a line for each that does not."""
    chosen, refused = {}, []
    for name in names:
        try:
            defense = DEFENSES.parse(name)
            defense.validate(model)
        except KeyholeError as error:
            refused.append(f"{name}: {error}")
        else:
            chosen[name] = defense
    return chosen, refused


def compare(
    model: nn.Module, data: ImageSet, defenses: dict[str, Defense], *, steps: int, rounds: int
) -> list[dict[str, object]]:
    """One row per defense: seconds, ratio to none, and the time of its doors in steps."""
    prepared = {name: defense.prepare_model(model) for name, defense in defenses.items()}
    seconds: dict[str, list[float]] = {name: [] for name in defenses}
    for turn in range(rounds + 1):  # the first warms up
        for name, defense in defenses.items():
            taken = measure_round(prepared[name], data, defense, steps)
            seconds[name] += [taken] if turn else []
    plain = min(seconds["none"])
    return [
        {
            "defense": name,
            "milliseconds": round(min(taken) * 1e3, 2),
            "ratio": round(min(taken) / plain, 2),
            "own": round((min(taken) - plain) / (plain / steps), 2),
        }
        for name, taken in seconds.items()
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    data = load(options.data)
    model = build(
        options.model,
        classes=len(data.classes),
        channels=data.shape[0],
        image_size=data.size,
        seed=0,
    )
    names = options.only.split(",") if options.only else DEFENSES.names()
    names = ["none", *(name for name in names if name != "none")]
    chosen, refused = choose_defenses(names, model)
    rows = compare(model, data, chosen, steps=options.steps, rounds=options.rounds)
    if options.json:
        print(json.dumps({"rows": rows, "refused": refused}, indent=2))
        return
    print(f"{'defense':32}{'ms':>9}{'ratio':>8}{'own/step':>10}")
    for row in rows:
        print(f"{row['defense']:32}{row['milliseconds']:9}{row['ratio']:8}{row['own']:10}")
    for line in refused:
        print(f"left out: {line}")


if __name__ == "__main__":
    main()
