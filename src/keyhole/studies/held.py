"""Data sets held in memory for a study, what trains and what tests, and accuracy on the latter."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from keyhole.data import SOURCES, ImageSet, load
from keyhole.defenses import ClientSide, Defense
from keyhole.federation.partition import shuffled
from keyhole.seeds import generator

HELD_OUT = 0.2
EVALUATED = 1000
"""Images judged at a time."""


@dataclass(frozen=True)
class Parts:
    """A data set in memory, and which of its images train and which test."""

    data: ImageSet
    train: list[int]
    test: ImageSet
    tested: list[int]


@lru_cache(maxsize=1)
def parts(name: str, data_dir: str | None, seed: int, device: torch.device) -> Parts:
    """The data set's own test part where it has one; else a fifth, held out by seed."""
    data = resident(load(name, data_dir=data_dir), device)
    every = list(range(len(data)))
    if name in SOURCES and "test" in SOURCES[name].splits:
        test = resident(load(name, data_dir=data_dir, split="test"), device)
        return Parts(data, every, test, list(range(len(test))))
    order = shuffled(every, generator(seed, "held out"))
    kept = round(HELD_OUT * len(order))
    return Parts(data, sorted(order[kept:]), data, sorted(order[:kept]))


def resident(data: ImageSet, device: torch.device) -> ImageSet:
    """The set with all its images decoded once and held on the device."""
    held = torch.cat(
        [data.pixels(range(i, min(i + 5000, len(data)))) for i in range(0, len(data), 5000)]
    ).to(device)
    return replace(data, pixels=lambda indices: held[torch.as_tensor(indices).to(device)])


@torch.no_grad()
def accuracy(
    model: nn.Module, held: tuple[ImageSet, list[int]], defense: Defense | None, seed: int
) -> float:
    """The share of images classified right, as they are or as the defense shows them."""
    data, _ = held
    model.eval()
    side = ClientSide(generator(seed, "evaluation"))
    right = total = 0
    for images, labels in batches(held, next(model.parameters())):
        shown = images if defense is None else defense.on_images(images, side)
        right += int((model(data.normalise(shown)).argmax(1) == labels).sum())
        total += len(labels)
    return right / total


def batches(held: tuple[ImageSet, list[int]], like: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    data, indices = held
    for start in range(0, len(indices), EVALUATED):
        some = indices[start : start + EVALUATED]
        yield data.images(some).to(like), data.labels[some].to(like.device)
