"""Training an :class:`Unscrambler` on public images: the shuffle is public, and needs no key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.unshuffle.learned.network import Unscrambler
from keyhole.attacks.unshuffle.learned.puzzles import Album, Puzzle, puzzle
from keyhole.seeds import derive, generator, seeded_globally

AT_ONCE = 64
"""Puzzles that are made together; all of them are of one size."""


@dataclass(frozen=True)
class Lesson:
    """AdamW with warm-up and cosine decay; each batch is of one album, and albums take turns."""

    steps: int = 2400
    puzzles: int = 1024
    """Made of each album before it begins: what seams say is computed once."""
    batch_size: int = 16
    lr: float = 3e-3
    width: int = 48
    depth: int = 4
    seconds: float | None = None
    """Ends early after so long; the rate falls with the time then."""
    seed: int = 0


def learn(
    albums: Sequence[Album],
    lesson: Lesson,
    *,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> Unscrambler:
    """An unscrambler for images like those of the albums, on the device of the first."""
    draw = generator(lesson.seed, "lesson")
    with seeded_globally(derive(lesson.seed, "unscrambler")):
        network = Unscrambler(width=lesson.width, depth=lesson.depth)
    network.to(albums[0].pixels.device)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=lesson.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    shelves = [made(album, lesson, draw) for album in albums]
    began, mean = time.monotonic(), 0.0
    for step in range(lesson.steps):
        share = (step + 1) / lesson.steps
        if lesson.seconds is not None:
            share = max(share, (time.monotonic() - began) / lesson.seconds)
        if share > 1:
            break
        warm = min(1.0, (step + 1) / min(100, max(1, lesson.steps // 10)))
        rate = warm * 0.5 * (1 + math.cos(math.pi * share))
        optimiser.param_groups[0]["lr"] = lesson.lr * rate
        loss = surprise(network, some(shelves[step % len(shelves)], lesson.batch_size, draw))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        mean = 0.98 * mean + 0.02 * float(loss.detach()) if step else float(loss.detach())
        told(step, mean)
    return network.eval()


def made(album: Album, lesson: Lesson, draw: torch.Generator) -> list[Puzzle]:
    """An album's puzzles, at most AT_ONCE in each."""
    with torch.no_grad():
        size = min(AT_ONCE, lesson.puzzles)
        return [puzzle(album, size, draw) for _ in range(0, lesson.puzzles, size)]


def some(shelf: Sequence[Puzzle], count: int, draw: torch.Generator) -> Puzzle:
    """A batch of ``count`` of the images of one puzzle."""
    one = shelf[int(torch.randint(len(shelf), (1,), generator=draw))]
    chosen = torch.randperm(len(one.belief), generator=draw)[:count]
    return one.of(chosen.to(one.belief.device))


def surprise(network: Unscrambler, batch: Puzzle) -> Tensor:
    """Minus the mean log-probability of a right item in a cell, and of a right cell of an item."""
    logits = network(batch.parts, batch.belief)
    found = []
    for axis in (-1, -2):
        chance = torch.log_softmax(logits, axis).masked_fill(~batch.right, -torch.inf)
        found.append(torch.logsumexp(chance, axis)[batch.asked.any(axis)])
    return -torch.cat(found).mean()
