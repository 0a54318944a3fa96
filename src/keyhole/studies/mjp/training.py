"""Training on CIFAR-10 by DeiT's recipe, cut to minutes, on one device.

What differs from the paper's recipe: CIFAR-10 in place of ImageNet; fewer epochs; crops and flips
in place of RandAugment and repeated augmentation. All arms are trained alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from keyhole.data.image_set import ImageSet
from keyhole.federation.training import augmented
from keyhole.models.jigsaw import Jigsaw
from keyhole.seeds import derive, generator, seeded_globally


@dataclass(frozen=True)
class Recipe:
    """AdamW with warm-up and cosine decay; half of the batches are mixed."""

    epochs: int = 60
    batch_size: int = 1024
    lr: float = 1e-3
    weight_decay: float = 0.05
    warm_up: int = 5
    smoothing: float = 0.1
    mixup: float = 0.8
    cutmix: float = 1.0
    mixed: float = 0.5
    """The share of batches that are mixed."""
    erasing: float = 0.25
    clip: float = 5.0
    dal_weight: float = 0.01


@dataclass(frozen=True)
class Pictures:
    """A data set on the device: uint8 ``[n, C, H, W]`` and labels."""

    images: Tensor
    labels: Tensor
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, data: ImageSet, device: torch.device, count: int | None = None) -> Pictures:
        indices = list(range(len(data) if count is None else min(count, len(data))))
        labels = data.labels[indices].to(device)
        return cls(data.pixels(indices).to(device), labels, data.mean, data.std)

    def inputs(self, images: Tensor) -> Tensor:
        """uint8 images as the model is fed."""
        mean, std = (
            torch.tensor(v).to(images.device).view(-1, 1, 1) for v in (self.mean, self.std)
        )
        return (images.float() / 255 - mean) / std

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All of it, in order, as the model is fed."""
        for start in range(0, len(self.labels), size):
            part = slice(start, start + size)
            yield self.inputs(self.images[part]), self.labels[part]


def train(
    model: nn.Module, pictures: Pictures, test: Pictures, recipe: Recipe, *, seed: int
) -> dict[str, Any]:
    """Trains ``model`` itself; returns accuracy by epoch and how long a step takes."""
    device = pictures.images.device
    model.to(device)
    optimiser = optimiser_of(model, recipe)
    steps = recipe.epochs * (len(pictures.labels) // recipe.batch_size)
    warm_up = recipe.warm_up * (len(pictures.labels) // recipe.batch_size)
    rate = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda s: schedule(s, warm_up, steps))
    draw = generator(seed, "epochs")
    curve = []
    began = time.perf_counter()
    with seeded_globally(derive(seed, "training")):
        for epoch in range(recipe.epochs):
            model.train()
            for x, targets in epoch_batches(pictures, recipe, draw):
                loss = step(model, x, targets, recipe, optimiser)
                rate.step()
            if epoch % 5 == 4 or epoch == recipe.epochs - 1:
                curve.append((epoch + 1, accuracy(model, test), float(loss.detach())))
    seconds = time.perf_counter() - began
    return {
        "recipe": asdict(recipe),
        "curve": curve,
        "seconds": round(seconds, 1),
        "images_per_second": round(recipe.epochs * len(pictures.labels) / seconds),
    }


def optimiser_of(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    on_device = next(model.parameters()).is_cuda
    return torch.optim.AdamW(groups(model, recipe), lr=recipe.lr, fused=on_device)


def step(
    model: nn.Module, x: Tensor, targets: Tensor, recipe: Recipe, optimiser: torch.optim.Optimizer
) -> Tensor:
    """One step in bfloat16, gradients clipped; returns its loss."""
    for parameter in model.parameters():
        parameter.grad = None
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        logits = model(x)
    loss = F.cross_entropy(logits.float(), targets)
    if isinstance(model, Jigsaw) and model.puzzle.localiser != "none":
        loss = loss + recipe.dal_weight * model.localisation_loss()
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
    optimiser.step()
    return loss


def groups(model: nn.Module, recipe: Recipe) -> list[dict[str, Any]]:
    """No weight decay for biases, norms, tokens and positions, in all arms alike."""
    plain: list[nn.Parameter] = []
    decayed: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        free = parameter.ndim <= 1 or name.endswith(("pos_embed", "cls_token"))
        free = free or name.startswith("puzzle.")
        (plain if free else decayed).append(parameter)
    return [
        {"params": decayed, "weight_decay": recipe.weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]


def schedule(step: int, warm_up: int, steps: int) -> float:
    """The share of the full learning rate."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, steps - warm_up)))


def epoch_batches(
    pictures: Pictures, recipe: Recipe, draw: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of one epoch: inputs and soft targets."""
    order = torch.randperm(len(pictures.labels), generator=draw).to(pictures.images.device)
    size = recipe.batch_size
    for start in range(0, len(order) - size + 1, size):
        some = order[start : start + size]
        x = erased(augmented(pictures.inputs(pictures.images[some])), recipe.erasing)
        targets = smoothed(pictures.labels[some], recipe.smoothing)
        yield mixed(x, targets, recipe, draw)


def smoothed(labels: Tensor, smoothing: float, classes: int = 10) -> Tensor:
    return F.one_hot(labels, classes) * (1 - smoothing) + smoothing / classes


def mixed(
    x: Tensor, targets: Tensor, recipe: Recipe, draw: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Mixup or CutMix with the same batch in reverse, as timm mixes; or neither."""
    chance = torch.rand(4, generator=draw).tolist()
    if chance[0] >= recipe.mixed:
        return x, targets
    alpha = recipe.mixup if chance[1] < 0.5 else recipe.cutmix
    part = float(torch.distributions.Beta(alpha, alpha).sample())
    if chance[1] < 0.5:
        return x * part + x.flip(0) * (1 - part), targets * part + targets.flip(0) * (1 - part)
    height, width = x.shape[-2:]
    tall, wide = (round(side * math.sqrt(1 - part)) for side in (height, width))
    top, left = int(chance[2] * (height - tall + 1)), int(chance[3] * (width - wide + 1))
    window = (..., slice(top, top + tall), slice(left, left + wide))
    pasted = x.clone()
    pasted[window] = x.flip(0)[window]
    part = 1 - tall * wide / (height * width)
    return pasted, targets * part + targets.flip(0) * (1 - part)


def erased(x: Tensor, share: float) -> Tensor:
    """A rectangle of noise, half of each side at most, in a share of the images."""
    count, _, height, width = x.shape
    chance = torch.rand(5, count, 1, device=x.device)
    tall, wide = chance[1] * height / 2, chance[2] * width / 2
    top, left = chance[3] * (height - tall), chance[4] * (width - wide)
    down, across = (torch.arange(side, device=x.device)[None] for side in (height, width))
    rows = (down >= top) & (down < top + tall) & (chance[0] < share)
    columns = (across >= left) & (across < left + wide)
    hole = (rows[:, :, None] & columns[:, None, :])[:, None]
    return torch.where(hole, torch.randn_like(x), x)


@torch.no_grad()
def accuracy(model: nn.Module, test: Pictures) -> float:
    """The share of plain test images that are classified right."""
    model.eval()
    right = 0
    for x, labels in test.batches(2048):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
            right += int((model(x).argmax(1) == labels).sum())
    return right / len(test.labels)
