"""Training an :class:`Unscrambler` on public images: the shuffle is public, and needs no key."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from keyhole.attacks.unshuffle.learned.network import Unscrambler
from keyhole.defenses import Csvar
from keyhole.seeds import derive, generator, seeded_globally


@dataclass(frozen=True)
class Lesson:
    """AdamW with warm-up and cosine decay, on single planes of random crops, some mirrored."""

    steps: int = 2000
    batch_size: int = 96
    lr: float = 2e-3
    crop: int = 32
    width: int = 64
    depth: int = 4
    seconds: float | None = None
    """Ends early after so long; the rate falls with the time then."""
    seed: int = 0


def learn(
    images: Tensor,
    lesson: Lesson,
    *,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> Unscrambler:
    """An unscrambler for images cut to ``crop``, from public ``images [N, C, H, W]``, uint8."""
    draw = generator(lesson.seed, "lesson")
    with seeded_globally(derive(lesson.seed, "unscrambler")):
        network = Unscrambler(width=lesson.width, depth=lesson.depth).to(images.device)
    optimiser = torch.optim.AdamW(network.parameters(), lr=lesson.lr, weight_decay=0.01)
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
        truth = crops(images, lesson, draw)
        seeds = torch.randint(2**62, (len(truth),), generator=draw)
        loss = F.mse_loss(network(Csvar().shuffle(truth, seeds)), truth)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimiser.step()
        mean = 0.99 * mean + 0.01 * float(loss.detach()) if step else float(loss.detach())
        told(step, mean)
    return network.eval()


def crops(images: Tensor, lesson: Lesson, draw: torch.Generator) -> Tensor:
    """Planes ``[batch, 1, crop, crop]`` in [0, 1] from random places of random images."""
    count, planes, height, width = images.shape
    chosen = torch.randint(count, (lesson.batch_size,), generator=draw)
    plane = torch.randint(planes, (lesson.batch_size,), generator=draw)
    top = torch.randint(height - lesson.crop + 1, (lesson.batch_size, 1), generator=draw)
    left = torch.randint(width - lesson.crop + 1, (lesson.batch_size, 1), generator=draw)
    step = torch.arange(lesson.crop)
    down, across = top + step, left + step
    mirrored = torch.rand(lesson.batch_size, 1, generator=draw) < 0.5
    across = torch.where(mirrored, across.flip(1), across)
    index = (chosen[:, None, None], plane[:, None, None], down[:, :, None], across[:, None, :])
    found = images[tuple(i.to(images.device) for i in index)]
    return found[:, None].float() / 255
