"""Trains an :class:`Unscrambler` on public images: the shuffle is public, and needs no key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from keyhole.attacks.jigsaw.learned import Unscrambler
from keyhole.seeds import derive, generator, seeded_globally
from keyhole_studies.training import set_rate, take_gradient_step
from keyhole_studies.unscrambler_training.puzzles import (
    LabelledPuzzle,
    PublicImages,
    make_puzzle,
)

AT_ONCE = 64
"""Puzzles that are made together; all of them are of one size."""


@dataclass(frozen=True)
class UnscramblerSettings:
    """AdamW with warm-up and cosine decay; each batch is of one set of images, in turns.

    Args:
        steps: How many.
        puzzles: Made of each set before the training begins: what seams say is computed once.
        batch_size: Images in a step.
        lr: The highest learning rate.
        width: Of the network.
        depth: Of the network.
        seconds: The training ends early after so long, and the rate falls with the time then.
        seed: Of weights, puzzles and batches.
    """

    steps: int = 2400
    puzzles: int = 1024
    batch_size: int = 16
    lr: float = 3e-3
    width: int = 48
    depth: int = 4
    seconds: float | None = None
    seed: int = 0


def train_unscrambler(
    sets: Sequence[PublicImages],
    settings: UnscramblerSettings,
    *,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> Unscrambler:
    """Trains an unscrambler for images like these, on the device of the first set.

    It learns to match cells with blocks, several of which may be right, not to tell classes:
    batches and loss are its own, and so is the loop.

    Args:
        sets: The images.
        settings: How.
        progress: Told each step, from 0, and a running mean of the loss.
    """
    draw = generator(settings.seed, "lesson")
    with seeded_globally(derive(settings.seed, "unscrambler")):
        network = Unscrambler(width=settings.width, depth=settings.depth)
    network.to(sets[0].pixels.device)
    optimiser = torch.optim.AdamW(
        network.parameters(), lr=settings.lr, betas=(0.9, 0.98), weight_decay=0.01
    )
    by_set = [make_puzzles(images, settings, draw) for images in sets]
    began, mean = time.monotonic(), 0.0
    for step in range(settings.steps):
        share = (step + 1) / settings.steps
        if settings.seconds is not None:
            share = max(share, (time.monotonic() - began) / settings.seconds)
        if share > 1:
            break
        warm = min(1.0, (step + 1) / min(100, max(1, settings.steps // 10)))
        rate = warm * 0.5 * (1 + math.cos(math.pi * share))
        set_rate(optimiser, settings.lr * rate)
        batch = draw_batch(by_set[step % len(by_set)], settings.batch_size, draw)
        loss = float(take_gradient_step(puzzle_loss(network, batch), network, optimiser, clip=1.0))
        mean = 0.98 * mean + 0.02 * loss if step else loss
        progress(step, mean)
    return network.eval()


def make_puzzles(
    images: PublicImages, settings: UnscramblerSettings, draw: torch.Generator
) -> list[LabelledPuzzle]:
    """The puzzles of one set of images, at most AT_ONCE together."""
    with torch.no_grad():
        size = min(AT_ONCE, settings.puzzles)
        return [make_puzzle(images, size, draw) for _ in range(0, settings.puzzles, size)]


def draw_batch(
    puzzles: Sequence[LabelledPuzzle], count: int, draw: torch.Generator
) -> LabelledPuzzle:
    """A batch of ``count`` of the images of one puzzle."""
    one = puzzles[int(torch.randint(len(puzzles), (1,), generator=draw))]
    chosen = torch.randperm(len(one.belief), generator=draw)[:count]
    return one.choose(chosen.to(one.belief.device))


def puzzle_loss(network: Unscrambler, batch: LabelledPuzzle) -> Tensor:
    """Minus the mean log-probability of a right item in a cell, and of a right cell of an item."""
    logits = network(batch.cells, batch.belief)
    found = []
    for axis in (-1, -2):
        chance = torch.log_softmax(logits, axis).masked_fill(~batch.right, -torch.inf)
        found.append(torch.logsumexp(chance, axis)[batch.in_doubt.any(axis)])
    return -torch.cat(found).mean()
